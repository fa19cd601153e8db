#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <stdexcept>
#include <string>

#include "tests/collective/group_threads.h"
#include "tests/collective/samples.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(60);
constexpr int kWorld = 3;

TimePoint later() { return std::chrono::steady_clock::now() + kPatience; }

RankCall<float> all_reduce(const Group& group, std::int64_t count = 1000) {
  return {Op::kAllReduce, ReduceOp::kSum, 0, count, group.rank(), group.world()};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class GroupTurn : public testing::TestWithParam<Medium> {
 protected:
  void with_group(const std::function<void(Group& group)>& part) { collective::with_group(GetParam(), kWorld, part); }
};

TEST_P(GroupTurn, ItsCallsFollowOneAnotherBetweenThoseBeforeAndAfter) {
  with_group([](Group& group) {
    RankCall<float> before = all_reduce(group), first = all_reduce(group, 7), second = all_reduce(group, 70'003),
                    after = all_reduce(group, 11);
    std::string order;
    const auto begun_before = group.begin(before.call(), kPatience);
    const auto begun = group.begin([&](Group::Turn& turn) {
      order += begun_before->is_done() ? "1" : "?";
      turn.run(first.call(), kPatience);
      order += first.is_right() ? "2" : "?";
      turn.run(second.call(), kPatience);
      order += second.is_right() ? "3" : "?";
    });
    group.run([&](Group::Turn& last) {
      order += begun->is_done() ? "4" : "?";
      last.run(after.call(), kPatience);
    });
    EXPECT_EQ(order, "1234");
    EXPECT_EQ(begun->error(), nullptr);
    EXPECT_TRUE(before.is_right() && after.is_right());
    EXPECT_EQ(group.calls(), 5u) << "with the barrier at the start";
  });
}

TEST_P(GroupTurn, WhatItsWorkThrowsEndsItAndNothingElse) {
  with_group([](Group& group) {
    RankCall<float> first = all_reduce(group), after = all_reduce(group);
    const auto work = [&](Group::Turn& turn) {
      turn.run(first.call(), kPatience);
      throw std::out_of_range("no such tensor");
    };
    EXPECT_THROW(group.run(work), std::out_of_range);
    EXPECT_TRUE(first.is_right());
    RankCall<float> again = all_reduce(group);
    const auto operation = group.begin([&](Group::Turn& turn) {
      turn.run(again.call(), kPatience);
      throw std::out_of_range("no such tensor");
    });
    EXPECT_TRUE(operation->wait(later()));
    EXPECT_EQ(text_of(operation->error()), "no such tensor");
    group.run(after.call(), kPatience);
    EXPECT_TRUE(after.is_right());
    EXPECT_EQ(group.error(), nullptr);
  });
}

TEST_P(GroupTurn, ABadCallIsRefusedBeforeAnyEffect) {
  with_group([](Group& group) {
    RankCall<float> good = all_reduce(group);
    Call bad = good.call();
    bad.shape.count += 1;
    group.run([&](Group::Turn& turn) {
      EXPECT_THAT(error_of([&] { turn.run(bad, kPatience); }), HasSubstr("expected 4004 bytes in 1 piece"));
      EXPECT_EQ(group.calls(), 1u) << "the barrier at the start";
      turn.run(good.call(), kPatience);
    });
    EXPECT_THAT(error_of([&] { group.run(bad, kPatience); }), HasSubstr("expected 4004 bytes in 1 piece"));
    EXPECT_THAT(error_of([&] { group.begin(bad, kPatience); }), HasSubstr("expected 4004 bytes in 1 piece"));
    EXPECT_TRUE(good.is_right());
    EXPECT_EQ(group.error(), nullptr);
  });
}

TEST_P(GroupTurn, WhatWouldWaitForItselfIsRefused) {
  with_group([](Group& group) {
    RankCall<float> inside = all_reduce(group), after = all_reduce(group);
    const auto nested = [&] {
      EXPECT_THAT(error_of([&] { group.run(inside.call(), kPatience); }), HasSubstr("would wait for itself"));
      EXPECT_THAT(error_of([&] { group.allocate(10, kPatience); }), HasSubstr("would wait for itself"));
    };
    group.run([&](Group::Turn&) { nested(); });
    std::promise<void> has_follower;
    std::promise<std::shared_ptr<Operation>> begun;
    const auto first = group.begin([&](Group::Turn&) {
      nested();
      has_follower.get_future().wait();
    });
    first->then([&] {
      nested();
      begun.set_value(group.begin(after.call(), kPatience));  // this it may
    });
    has_follower.set_value();
    const auto operation = begun.get_future().get();
    EXPECT_TRUE(operation->wait(later()));
    EXPECT_EQ(operation->error(), nullptr);
    EXPECT_TRUE(inside.is_untouched() && after.is_right());
  });
}

INSTANTIATE_TEST_SUITE_P(Media, GroupTurn, testing::Values(Medium::kSharedMemory, Medium::kTcp, Medium::kBoth),
                         [](const auto& tested) { return name(tested.param); });

}  // namespace
}  // namespace downpour::collective
