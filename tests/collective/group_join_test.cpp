#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <mutex>
#include <string>

#include "tests/collective/group_threads.h"
#include "tests/collective/samples.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(60);

// How each thread fared that wanted to join, in no order.
class Outcomes {
 public:
  void add(const std::string& error) {
    const std::lock_guard lock(mutex_);
    ++outcomes_[error];
  }
  // "": those that joined.
  std::string text() const {
    std::string all;
    for (const auto& [error, times] : outcomes_) {
      all += concat("\n", times, " times '", error, "'");
    }
    return all;
  }
  int with(const std::string& text) const {
    int count = 0;
    for (const auto& [error, times] : outcomes_) {
      count += (text.empty() ? error.empty() : error.find(text) != std::string::npos) ? times : 0;
    }
    return count;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> outcomes_;
};

// The group, or why there is none, or none that can be used.
std::unique_ptr<Group> try_to_form(Bulletin& bulletin, const GroupOptions& options, Outcomes& outcomes) {
  std::unique_ptr<Group> group;
  std::string error;
  try {
    group = Group::form(bulletin, options);
    group->run({}, kPatience);
  } catch (const CommError& thrown) {
    error = thrown.what();
    group.reset();
  }
  outcomes.add(error);
  return group;
}

GroupOptions options_with(Duration join_deadline, Medium medium, int rank, int world) {
  GroupOptions options = options_of(medium, rank, world);
  options.join_deadline = join_deadline;
  return options;
}

TEST(GroupJoining, ARankThatNeverComesIsNamed) {
  for (const int absent : {0, 1, 2}) {
    TableBulletin bulletin;
    Outcomes outcomes;
    std::vector<int> ranks = ranks_of(3);
    std::erase(ranks, absent);
    on_threads(ranks, [&](int rank) {
      const Duration deadline = std::chrono::milliseconds(300);
      EXPECT_EQ(try_to_form(bulletin, options_with(deadline, Medium::kSharedMemory, rank, 3), outcomes), nullptr);
    });
    EXPECT_EQ(outcomes.with("a group of 3 ranks is not complete: "), 2) << absent;
    EXPECT_EQ(outcomes.with(concat("rank ", absent, " did not come to rank ")), 2) << absent;
    EXPECT_EQ(outcomes.with(" within 0.3 s"), 2) << absent;
  }
}

TEST(GroupJoining, WhatCannotBeAGroupIsRefused) {
  TableBulletin bulletin;
  EXPECT_THROW(Group::form(bulletin, options_of(Medium::kTcp, 2, 2)), Error);
  EXPECT_THROW(Group::form(bulletin, options_of(Medium::kTcp, -1, 2)), Error);
  EXPECT_THROW(Group::form(bulletin, options_of(Medium::kTcp, 0, 0)), Error);
  GroupOptions options = options_of(Medium::kTcp, 0, 2);
  options.silence = options.heartbeat;
  EXPECT_THROW(Group::form(bulletin, options), Error);
}

TEST(GroupJoining, TheMediumIsWhatWasProved) {
  for (const Medium medium : {Medium::kSharedMemory, Medium::kTcp, Medium::kBoth}) {
    with_group(medium, 3, [&](Group& group) {
      const std::string expected = medium == Medium::kBoth ? "shm and tcp" : name(medium);
      EXPECT_EQ(group.medium(), expected);
    });
  }
}

TEST(GroupJoining, OfTwoThatClaimOneRankTheSecondIsRefusedAndTheGroupForms) {
  for (const Medium medium : {Medium::kSharedMemory, Medium::kTcp}) {
    TableBulletin bulletin;
    Outcomes outcomes;
    std::latch all_have_tried(3);
    on_threads({0, 1, 1}, [&](int rank) {
      const auto group = try_to_form(bulletin, options_with(kPatience, medium, rank, 2), outcomes);
      all_have_tried.arrive_and_wait();
      if (group) {
        RankCall<float> call(Op::kAllReduce, ReduceOp::kSum, 0, 1000, rank, 2);
        group->run(call.call(), kPatience);
        EXPECT_TRUE(call.is_right());
      }
    });
    EXPECT_EQ(outcomes.with(""), 2);
    EXPECT_EQ(outcomes.with("rank 1 is taken: two processes claim one rank"), 1);
  }
}

// Others may have come to the one or to the other: then nobody has a group.
TEST(GroupJoining, OfTwoThatClaimARankInTheMiddleNobodyWaitsForEver) {
  for (const Medium medium : {Medium::kSharedMemory, Medium::kTcp}) {
    TableBulletin bulletin;
    Outcomes outcomes;
    std::latch all_have_tried(4);
    on_threads({0, 1, 1, 2}, [&](int rank) {
      const auto group = try_to_form(bulletin, options_with(std::chrono::seconds(3), medium, rank, 3), outcomes);
      all_have_tried.arrive_and_wait();
    });
    EXPECT_TRUE(outcomes.with("") == 3 || outcomes.with("") == 0) << outcomes.with("");
    EXPECT_GE(outcomes.with("rank 1 is taken: two processes claim one rank"), 1);
  }
}

// Fails where it is asked for what begins with a word.
class FailingBulletin final : public Bulletin {
 public:
  FailingBulletin(Bulletin& working, std::string word) : working_(working), word_(std::move(word)) {}
  void put(const std::string& key, Bytes value) override {
    check(key);
    working_.put(key, value);
  }
  std::vector<std::byte> get(const std::string& key, TimePoint deadline) override {
    check(key);
    return working_.get(key, deadline);
  }

 private:
  void check(const std::string& key) const {
    DOWNPOUR_CHECK_AS(CommError, !key.starts_with(word_), "the store is lost");
  }
  Bulletin& working_;
  std::string word_;
};

TEST(GroupJoining, ABulletinThatFailsOneRankBeforeItIsReachedFailsAllInTime) {
  for (const std::string word : {"group", "address/"}) {
    TableBulletin bulletin;
    Outcomes outcomes;
    on_threads(ranks_of(3), [&](int rank) {
      FailingBulletin failing(bulletin, rank == 1 ? word : "nothing");
      try_to_form(failing, options_with(std::chrono::milliseconds(500), Medium::kSharedMemory, rank, 3), outcomes);
    });
    EXPECT_EQ(outcomes.with("the store is lost"), 1) << word;
    EXPECT_EQ(outcomes.with("rank 1 did not come"), 2) << word;
  }
}

TEST(GroupJoining, ABulletinThatFailsOneRankLaterFailsAllAtOnce) {
  for (const std::string word : {"shared/", "memory/"}) {
    TableBulletin bulletin;
    Outcomes outcomes;
    on_threads(ranks_of(3), [&](int rank) {
      FailingBulletin failing(bulletin, rank == 1 ? word : "nothing");
      try_to_form(failing, options_with(10 * kPatience, Medium::kSharedMemory, rank, 3), outcomes);
    });
    EXPECT_EQ(outcomes.with("the store is lost"), 3) << word << outcomes.text();
  }
}

}  // namespace
}  // namespace downpour::collective
