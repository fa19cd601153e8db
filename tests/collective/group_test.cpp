#include "csrc/collective/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <string>
#include <tuple>

#include "csrc/base/log.h"
#include "tests/collective/group_threads.h"
#include "tests/collective/samples.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(60);

TimePoint later() { return std::chrono::steady_clock::now() + kPatience; }
CallShape all_reduce_shape(std::int64_t count) {
  return {Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, count};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class Groups : public testing::TestWithParam<std::tuple<Medium, int>> {
 protected:
  Medium medium() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  void with_group(const std::function<void(Group& group)>& part) { collective::with_group(medium(), world(), part); }
};

TEST_P(Groups, EveryOperationOverEverySizeIsRight) {
  std::atomic<int> wrong{0};
  with_group([&](Group& group) {
    for (const Op op : all_ops()) {
      for (const std::int64_t count : {0, 1, 1009, 300'007}) {
        for (const int root : {0, group.world() - 1}) {
          if (root == 0 && count > 1009) {
            continue;  // the other root shows as much
          }
          RankCall<float> rank(op, ReduceOp::kSum, root, count, group.rank(), group.world());
          group.run(rank.call(), kPatience);
          wrong += rank.is_right() ? 0 : 1;
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(Groups, AnAverageIsDividedOnce) {
  std::atomic<int> wrong{0};
  with_group([&](Group& group) {
    for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
      for (const std::int64_t count : {5, 70'001}) {
        RankCall<double> rank(op, ReduceOp::kAverage, 0, count, group.rank(), group.world());
        group.run(rank.call(), kPatience);
        wrong += rank.is_right() ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(Groups, CallsInTheBackgroundKeepTheirOrder) {
  std::atomic<int> wrong{0};
  with_group([&](Group& group) {
    std::deque<RankCall<float>> calls;
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < 20; ++i) {
      calls.emplace_back(i % 2 == 0 ? Op::kAllReduce : Op::kBroadcast, ReduceOp::kSum, 0, 1000 + i, group.rank(),
                         group.world());
      operations.push_back(group.begin(calls.back().call(), kPatience));
    }
    RankCall<float> last(Op::kAllGather, ReduceOp::kSum, 0, 77, group.rank(), group.world());
    group.run(last.call(), kPatience);
    wrong += last.is_right() ? 0 : 1;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      wrong += operations[i]->is_done() && operations[i]->error() == nullptr && calls[i].is_right() ? 0 : 1;
    }
    EXPECT_EQ(group.calls(), 22u) << "with the barrier at the start";
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(Groups, MessagesGoBesideCalls) {
  std::atomic<int> wrong{0};
  with_group([&](Group& group) {
    if (group.world() == 1) {
      return;
    }
    const int next = (group.rank() + 1) % group.world();
    const int before = (group.rank() + group.world() - 1) % group.world();
    auto mine = samples<std::int32_t>(group.rank(), 200'003);
    std::vector<std::int32_t> theirs(mine.size());
    const auto receiving = group.receive(before, 5, bytes_of(theirs));
    RankCall<float> rank(Op::kAllReduce, ReduceOp::kSum, 0, 5000, group.rank(), group.world());
    const auto calling = group.begin(rank.call(), kPatience);
    const auto sending = group.send(next, 5, bytes_of(mine));
    const TimePoint limit = std::chrono::steady_clock::now() + kPatience;
    wrong += receiving->wait(limit) && sending->wait(limit) && calling->wait(limit) ? 0 : 1;
    wrong += theirs == samples<std::int32_t>(before, 200'003) && receiving->source() == before ? 0 : 1;
    wrong += rank.is_right() ? 0 : 1;
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(Groups, AllocatedMemoryIsReducedLikeAnyOther) {
  std::atomic<int> wrong{0};
  with_group([&](Group& group) {
    const std::int64_t count = 100'003;
    std::shared_ptr<std::byte> memory;
    for (const std::int64_t bytes : {64, 800'000}) {
      memory = group.allocate(bytes, kPatience);
    }
    const auto values = samples<float>(group.rank(), count);
    std::memcpy(memory.get(), values.data(), values.size() * 4);
    const MutableBytes tensor{memory.get(), values.size() * 4};
    group.run({{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, count}, {}, {tensor}}, kPatience);
    for (std::int64_t i = 0; i < count; ++i) {
      const float expected = expected_reduction<float>(ReduceOp::kSum, group.world(), i);
      wrong += reinterpret_cast<const float*>(memory.get())[i] == expected ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(Groups, ARankThatEndsItsGroupIsNamedByThoseWhoNeedIt) {
  if (world() == 1) {
    return;
  }
  std::atomic<int> named{0};
  with_group([&](Group& group) {
    if (group.rank() == 1) {
      return;
    }
    RankCall<float> rank(Op::kAllReduce, ReduceOp::kSum, 0, 100'003, group.rank(), group.world());
    try {
      group.run(rank.call(), kPatience);
    } catch (const CommError& error) {
      named += std::string(error.what()).find("rank 1 has ended its group") != std::string::npos;
    }
    EXPECT_NE(group.error(), nullptr);
    EXPECT_THROW(group.run(rank.call(), kPatience), CommError);
    EXPECT_THROW(group.send(1, 0, {}), CommError);
  });
  EXPECT_EQ(named, world() - 1);
}

TEST_P(Groups, ARankThatIsLateIsNamedAndNothingElse) {
  if (world() == 1) {
    return;
  }
  std::atomic<int> named{0};
  std::atomic<int> timed_out{0};
  std::promise<void> all_timed_out;
  const std::shared_future<void> late_ends = all_timed_out.get_future().share();
  with_group([&](Group& group) {
    if (group.rank() == 1) {
      late_ends.wait();
      return;
    }
    RankCall<float> rank(Op::kBarrier, ReduceOp::kSum, 0, 0, group.rank(), group.world());
    try {
      group.run(rank.call(), std::chrono::milliseconds(200));
    } catch (const CommError& error) {
      named += std::string(error.what()).find("rank 1 did not come") != std::string::npos;
    }
    if (++timed_out == world() - 1) {
      all_timed_out.set_value();
    }
    late_ends.wait();
  });
  EXPECT_EQ(named, world() - 1);
}

TEST_P(Groups, AnAbortReachesEveryRankWithItsReason) {
  std::atomic<int> heard{0};
  std::atomic<int> ready{0};
  with_group([&](Group& group) {
    RankCall<float> rank(Op::kBarrier, ReduceOp::kSum, 0, 0, group.rank(), group.world());
    ++ready;
    if (group.rank() == 0) {
      while (ready < world()) {
        std::this_thread::yield();
      }
      group.abort("its disk is full");
      group.abort("another reason");
    }
    try {
      for (;;) {
        group.run(rank.call(), kPatience);
      }
    } catch (const CommError& error) {
      heard += std::string(error.what()).find("its disk is full") != std::string::npos;
    }
  });
  EXPECT_EQ(heard, world());
}

TEST_P(Groups, RanksInDifferentCallsAllHearOfIt) {
  if (world() == 1) {
    return;
  }
  std::atomic<int> heard{0};
  with_group([&](Group& group) {
    RankCall<float> rank(Op::kAllReduce, ReduceOp::kSum, 0, group.rank() == 1 ? 11 : 10, group.rank(), group.world());
    try {
      group.run(rank.call(), kPatience);
    } catch (const Error& error) {
      heard += std::string(error.what()).find("call different things") != std::string::npos;
    }
  });
  EXPECT_EQ(heard, world());
}

// Everyone waits for somebody who is in another call, and no piece of it ever comes.
TEST_P(Groups, RanksThatWaitForOneAnotherInDifferentCallsAllHearOfIt) {
  if (world() == 1) {
    return;
  }
  std::atomic<int> heard{0};
  with_group([&](Group& group) {
    const Op op = group.rank() == 1 ? Op::kBroadcast : Op::kAllReduce;
    RankCall<float> rank(op, ReduceOp::kSum, 0, 10, group.rank(), group.world());
    try {
      group.run(rank.call(), kPatience);
    } catch (const Error& error) {
      const std::string text = error.what();
      heard += text.find("broadcast of 10 float") != std::string::npos &&
               text.find("all_reduce of 10 float") != std::string::npos;
    }
  });
  EXPECT_EQ(heard, world());
}

INSTANTIATE_TEST_SUITE_P(Media, Groups,
                         testing::Combine(testing::Values(Medium::kSharedMemory, Medium::kTcp, Medium::kBoth),
                                          testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& tested) {
                           return concat(name(std::get<0>(tested.param)), "_", std::get<1>(tested.param));
                         });

// ---- endings ----------------------------------------------------------------------------------------------------------------

TEST(GroupMemory, TheMemoryOfAnArenaStaysWhenTheGroupIsGone) {
  std::vector<std::shared_ptr<std::byte>> kept(2);
  with_group(Medium::kSharedMemory, 2, [&](Group& group) {
    auto& mine = kept[static_cast<std::size_t>(group.rank())];
    mine = group.allocate(100'000, kPatience);
    std::memset(mine.get(), group.rank() + 1, 100'000);
  });
  EXPECT_EQ(static_cast<int>(kept[0].get()[99'999]), 1);
  EXPECT_EQ(static_cast<int>(kept[1].get()[99'999]), 2);
}

TEST(GroupMemory, AnotherSizeOnAnotherRankIsNamedOnAllAndHarmsNothing) {
  with_group(Medium::kSharedMemory, 3, [&](Group& group) {
    const std::string expected = "allocate: expected the same size on every rank, found 100 bytes on rank 0 and 300 ";
    EXPECT_THAT(error_of([&] { group.allocate(group.rank() == 2 ? 300 : 100, kPatience); }), HasSubstr(expected));
    EXPECT_NE(group.allocate(100, kPatience), nullptr);
  });
}

TEST(GroupMemory, ARankInAnotherCallIsNamed) {
  with_group(Medium::kSharedMemory, 2, [&](Group& group) {
    const auto use = [&] {
      group.rank() == 0 ? static_cast<void>(group.allocate(100, kPatience)) : group.run({}, kPatience);
    };
    EXPECT_THAT(error_of(use), HasSubstr("the ranks of the group call different things"));
  });
}

TEST(GroupMemory, NothingCannotBeAllocated) {
  with_group(Medium::kTcp, 1, [](Group& group) {
    EXPECT_THAT(error_of([&] { group.allocate(0, kPatience); }), HasSubstr("expected more than 0 bytes, found 0"));
    EXPECT_THAT(error_of([&] { group.allocate(-1, kPatience); }), HasSubstr("found -1"));
  });
}

class GroupEndings : public testing::TestWithParam<Medium> {};

TEST_P(GroupEndings, OfADestroyedGroupWhatIsQueuedFails) {
  std::promise<void> destroyed;
  const std::shared_future<void> ended = destroyed.get_future().share();
  TableBulletin bulletin;
  on_threads({0, 1}, [&](int rank) {
    auto group = Group::form(bulletin, options_of(GetParam(), rank, 2));
    if (rank == 1) {
      ended.wait();  // and comes to no call
      return;
    }
    std::vector<float> values(100'000);
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < 10; ++i) {
      operations.push_back(group->begin({all_reduce_shape(100'000), {}, {bytes_of(values)}}, kPatience));
    }
    operations.push_back(group->receive(1, 3, bytes_of(values)));
    operations.push_back(group->send(1, 3, bytes_of(values)));
    group.reset();
    for (const auto& operation : operations) {
      EXPECT_TRUE(operation->is_done());
      EXPECT_EQ(text_of(operation->error()), "the group was destroyed");
    }
    destroyed.set_value();
  });
}

TEST_P(GroupEndings, AGroupMayEndInWhatFollowsAnOperation) {
  for (const bool is_call : {true, false}) {
    TableBulletin bulletin;
    on_threads({0, 1}, [&](int rank) {
      std::shared_ptr<Group> group = Group::form(bulletin, options_of(GetParam(), rank, 2));
      group->run({}, kPatience);
      std::int32_t value = rank;
      const MutableBytes bytes = std::as_writable_bytes(std::span(&value, 1));
      const auto operation = is_call     ? group->begin({}, kPatience)
                             : rank == 0 ? group->receive(1, 0, bytes)
                                         : group->send(0, 0, bytes);
      if (rank == 0) {
        operation->then([last = std::move(group)]() mutable { last.reset(); });
        EXPECT_TRUE(operation->wait(later()));
        return;
      }
      EXPECT_TRUE(operation->wait(later()));
      EXPECT_THAT(error_of([&] { group->run({}, kPatience); }), HasSubstr("rank 0 has ended its group"));
    });
  }
}

// ---- messages ---------------------------------------------------------------------------------------------------------------

TEST_P(GroupEndings, WhereNobodyIsLeftAReceiveFromAnyRankFails) {
  with_group(GetParam(), 3, [&](Group& group) {
    if (group.rank() != 0) {
      return;
    }
    std::int32_t value = 0;
    const auto receiving = group.receive(Group::kAnyRank, 1, std::as_writable_bytes(std::span(&value, 1)));
    EXPECT_TRUE(receiving->wait(later()));
    EXPECT_THAT(text_of(receiving->error()), HasSubstr("has ended its group"));
  });
}

TEST_P(GroupEndings, AReceiveFromAnyRankSaysFromWhich) {
  with_group(GetParam(), 3, [&](Group& group) {
    std::int32_t value = 100 + group.rank();
    const MutableBytes bytes = std::as_writable_bytes(std::span(&value, 1));
    if (group.rank() != 1) {
      EXPECT_TRUE(group.send(1, 4, bytes)->wait(later()));
      group.run({}, kPatience);
      return;
    }
    int sources = 0;
    for (int i = 0; i < 2; ++i) {
      const auto receiving = group.receive(Group::kAnyRank, 4, bytes);
      EXPECT_TRUE(receiving->wait(later()));
      EXPECT_EQ(value, 100 + receiving->source());
      sources += receiving->source();
    }
    EXPECT_EQ(sources, 2);
    group.run({}, kPatience);
  });
}

TEST_P(GroupEndings, AMessageToNobodyIsRefused) {
  with_group(GetParam(), 2, [&](Group& group) {
    const int self = group.rank();
    for (const int nobody : {-2, 2, 1000, self}) {
      EXPECT_THAT(error_of([&] { group.send(nobody, 0, {}); }),
                  HasSubstr(concat("send: expected another rank of 0 to 1, found ", nobody)));
      EXPECT_THAT(error_of([&] { group.receive(nobody, 0, {}); }),
                  HasSubstr(concat("receive: expected another rank of 0 to 1, found ", nobody)));
    }
    EXPECT_THAT(error_of([&] { group.send(Group::kAnyRank, 0, {}); }), HasSubstr("found -1"));
    EXPECT_EQ(group.error(), nullptr);
    group.run({}, kPatience);
  });
  with_group(GetParam(), 1, [](Group& group) {
    EXPECT_THAT(error_of([&] { group.receive(Group::kAnyRank, 0, {}); }), HasSubstr("there is no other rank"));
  });
}

// ---- fork -------------------------------------------------------------------------------------------------------------------

bool is_refused(const std::function<void()>& use) { return error_of(use).find("was forked from process") < 100; }

// What the child says by its exit code.
int misuse(std::unique_ptr<Group> group) {
  const bool all = is_refused([&] { group->run({}, kPatience); }) && is_refused([&] { group->begin({}, kPatience); }) &&
                   is_refused([&] { group->send(0, 0, {}); }) && is_refused([&] { group->allocate(1, kPatience); }) &&
                   is_refused([&] { group->abort("a child"); }) && text_of(group->error()).find("forked") < 100;
  group.reset();
  return all ? 0 : 1;
}

TEST_P(GroupEndings, AForkedChildHearsThatItHasNoGroupAndHarmsNobody) {
  TableBulletin bulletin;
  on_threads({0, 1}, [&](int rank) {
    auto group = Group::form(bulletin, options_of(GetParam(), rank, 2));
    group->run({}, kPatience);
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::_exit(misuse(std::move(group)));
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 0);
    }
    RankCall<float> call(Op::kAllReduce, ReduceOp::kSum, 0, 5000, rank, 2);
    group->run(call.call(), kPatience);
    EXPECT_TRUE(call.is_right());
  });
}

// For whoever looks for the call that one rank has made and another has not.
TEST_P(GroupEndings, EveryRankSaysItsLastCalls) {
  static std::mutex mutex;
  static std::string said;
  said.clear();
  set_log_sink([](LogLevel, std::string_view line) {
    const std::scoped_lock lock(mutex);
    said += std::string(line) + "\n";
  });
  std::atomic<int> done{0};
  with_group(GetParam(), 2, [&](Group& group) {
    for (int i = 0; i < 120; ++i) {
      RankCall<float> rank(i < 110 ? Op::kAllReduce : Op::kBroadcast, ReduceOp::kSum, 0, 8, group.rank(), 2);
      group.run(rank.call(), kPatience);
    }
    RankCall<float> rank(Op::kBarrier, ReduceOp::kSum, 0, 0, group.rank(), 2);
    ++done;
    if (group.rank() == 0) {
      while (done < 2) {
        std::this_thread::yield();
      }
      group.abort("enough");
    }
    EXPECT_THROW(group.run(rank.call(), kPatience), CommError);
  });
  set_log_sink(nullptr);
  for (const char* rank : {"rank 0's group of 2 is over: ", "rank 1's group of 2 is over: "}) {
    EXPECT_THAT(said, HasSubstr(rank));
  }
  EXPECT_THAT(said, testing::ContainsRegex(
                        "[0-9]+ to [0-9]+ all_reduce of 8 float, sum, [0-9]+ to [0-9]+ broadcast of 8 float"));
}

INSTANTIATE_TEST_SUITE_P(Media, GroupEndings, testing::Values(Medium::kSharedMemory, Medium::kTcp),
                         [](const auto& tested) { return name(tested.param); });

}  // namespace
}  // namespace downpour::collective
