#include "csrc/ps/replay_log.h"

#include <gtest/gtest.h>

#include <cstring>

#include "csrc/base/aligned_bytes.h"
#include "csrc/base/error.h"
#include "csrc/ps/declared_losses.h"

namespace downpour::ps {
namespace {

struct Store {
  explicit Store(std::uint32_t slots) { move_to(slots); }
  void move_to(std::uint32_t slots) {
    AlignedBytes fresh(slots * static_cast<std::size_t>(layout.buffer_bytes));
    log.move_to(fresh, slots, nullptr);
    memory = std::move(fresh);
  }
  // A push whose every byte is its sequence.
  ReplayRecord& push() {
    ReplayRecord& record = log.begin(0, 0, {});
    std::memset(log.slot(record).data(), static_cast<int>(record.header.sequence), 64);
    record.ended = true;
    return record;
  }
  void decide(std::uint64_t sequence) { log.find(sequence)->verdict = Verdict::kApplied; }
  int content(std::uint64_t sequence) { return static_cast<int>(log.slot(*log.find(sequence))[63]); }

  ShardLayout layout = partition({{{"w", {16}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0}, 1)[0];
  AlignedBytes memory;
  ReplayLog log{layout, 1};
};

TEST(ReplayLog, SlotsAreUsedAgainLastOutFirstIn) {
  Store store(3);
  const std::uint32_t slot = store.push().slot;
  store.decide(0);
  store.log.release_below(1);
  EXPECT_TRUE(store.log.is_empty());
  EXPECT_EQ(store.push().slot, slot);
  EXPECT_EQ(store.log.first(), 1u);
}

TEST(ReplayLog, BeyondTheBudgetTheOldestDecidedPushGoes) {
  Store store(2);
  store.push();
  store.push();
  EXPECT_FALSE(store.log.has_room());
  EXPECT_THROW(store.log.begin(0, 0, {}), Error);
  store.decide(0);
  ASSERT_TRUE(store.log.has_room());
  store.push();
  EXPECT_EQ(store.log.first(), 1u);
  EXPECT_EQ(store.log.find(0), nullptr);
  EXPECT_EQ(store.content(1), 1);
  EXPECT_EQ(store.content(2), 2);
}

TEST(ReplayLog, WhatIsInFlightStays) {
  Store store(2);
  store.push().in_flight = true;
  store.push();
  store.decide(0);
  EXPECT_FALSE(store.log.has_room());
  store.log.release_below(5);
  EXPECT_EQ(store.log.first(), 0u);
  store.log.connection_lost();
  EXPECT_TRUE(store.log.has_room());
}

TEST(ReplayLog, OnlyDecidedPushesAreReleased) {
  Store store(4);
  store.push();
  store.push();
  store.decide(0);
  store.log.release_below(2);
  EXPECT_EQ(store.log.first(), 1u);
}

TEST(ReplayLog, MovesToOtherMemoryInOrder) {
  Store store(4);
  for (int i = 0; i < 3; ++i) {
    store.push();
  }
  store.move_to(8);
  EXPECT_EQ(store.content(0), 0);
  EXPECT_EQ(store.content(2), 2);
  for (int i = 0; i < 5; ++i) {
    store.push();
  }
  EXPECT_FALSE(store.log.has_room());
  store.decide(0);
  store.decide(1);
  EXPECT_THROW(store.move_to(4), Error);  // six undecided ones do not fit
  EXPECT_EQ(store.content(7), 7);
  store.move_to(6);  // the oldest decided ones go
  EXPECT_EQ(store.log.first(), 2u);
  EXPECT_EQ(store.content(2), 2);
  EXPECT_EQ(store.content(7), 7);
}

TEST(ReplayLog, AnAbandonedPushGivesItsNumberBack) {
  Store store(2);
  const std::uint32_t slot = store.log.begin(0, 0, {}).slot;
  store.log.abandon_newest();
  EXPECT_EQ(store.log.next(), 0u);
  EXPECT_EQ(store.push().slot, slot);
}

TEST(ReplayLog, RenumberingKeepsTheOpenPushOnly) {
  Store store(4);
  store.push();
  ReplayRecord& open = store.log.begin(0, 0, {});
  std::memset(store.log.slot(open).data(), 42, 64);
  store.log.renumber(9);
  EXPECT_EQ(store.log.first(), 9u);
  EXPECT_EQ(store.log.next(), 10u);
  EXPECT_EQ(store.log.newest().header.sequence, 9u);
  EXPECT_EQ(store.content(9), 42);
}

TEST(DeclaredLosses, CountsEachPushOnce) {
  DeclaredLosses losses;
  EXPECT_EQ(losses.declare(3, 6), 3u);
  EXPECT_EQ(losses.declare(3, 6), 0u);
  EXPECT_EQ(losses.declare(3, 8), 2u);
  EXPECT_EQ(losses.declare(10, 12), 2u);
  EXPECT_EQ(losses.declare(7, 14), 4u);
  EXPECT_EQ(losses.declare(0, 14), 3u);
  losses.forget_below(14);
  EXPECT_EQ(losses.declare(14, 15), 1u);
}

}  // namespace
}  // namespace downpour::ps
