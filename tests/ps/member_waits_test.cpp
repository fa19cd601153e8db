#include "csrc/ps/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "tests/ps/member_pair.h"

namespace downpour::ps {
namespace {

using namespace member_pair;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- progress and the clock ---------------------------------------------------------------------------------------

TEST(MemberProgress, IsSentWithTheNextBeat) {
  CoordinatorHost host({.workers = 1});
  Member member(host.member(0));
  member.report({.step = 5});
  EXPECT_TRUE(host.sees_step(0, 5));
  member.report({.step = 6});
  EXPECT_TRUE(host.sees_step(0, 6));
}

TEST(MemberClock, NoWorkerRunsFurtherAheadThanTheLead) {
  constexpr std::int64_t kSteps = 100, kLead = 2;
  Pair pair(with_lead(kLead));
  std::array<std::atomic<std::int64_t>, 2> steps{};
  std::atomic<std::int64_t> furthest{0};
  const auto train = [&](Member& member, std::size_t self) {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const std::int64_t other = steps[1 - self].load();
      std::int64_t seen = furthest.load();
      while (step - 1 - other > seen && !furthest.compare_exchange_weak(seen, step - 1 - other)) {
      }
      steps[self].store(step);
      member.tick(step);
      member.wait_minimum_clock(step - kLead);
    }
  };
  std::thread other([&] { train(*pair.second, 1); });
  train(*pair.first, 0);
  other.join();
  EXPECT_LE(furthest.load(), kLead);
}

TEST(MemberClock, AWaitForAWorkerThatDoesNothingNamesIt) {
  Pair pair(with_lead(0), kShort);
  pair.first->tick(1);
  EXPECT_THAT([&] { pair.first->wait_minimum_clock(1); },
              ThrowsMessage<TimeoutError>(
                  AllOf(HasSubstr("worker 0"), HasSubstr("lead"), HasSubstr("worker 1 has made no progress"))));
}

TEST(MemberClock, AWaitGoesOnWhileTheSlowestMakesProgress) {
  Pair pair(with_lead(0), /*first_deadline=*/3s, /*second_deadline=*/200ms);
  constexpr std::int64_t kSteps = 20;
  std::thread slow([&] {
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      EXPECT_THROW(pair.second->wait_minimum_clock(1000), TimeoutError);  // passes the time
      pair.second->tick(step);
    }
  });
  pair.first->tick(kSteps);
  pair.first->wait_minimum_clock(kSteps);  // longer than its deadline
  slow.join();
}

TEST(MemberClock, ALaterLifeCountsFromTheMinimum) {
  Pair pair(with_lead(0));
  pair.first->tick(50);
  pair.second->tick(50);
  pair.first->wait_minimum_clock(50);
  Member again(pair.host.member(1));  // the same process: the former life is over
  EXPECT_EQ(again.joined().incarnation, 2u);
  EXPECT_EQ(again.clock(), 50);
  again.agree(with_lead(0));
  again.tick(1);  // its own first step is the job's 51st
  EXPECT_EQ(again.clock(), 51);
  pair.first->tick(51);
  pair.first->wait_minimum_clock(51);
  again.wait_minimum_clock(1);
}

// ---- leases -------------------------------------------------------------------------------------------------------

TEST(MemberLeases, AreDealtAndTheEndIsHeard) {
  Pair pair(with_leases(3));
  EXPECT_THAT(ids(pair.first->ask_leases(2)), ElementsAre(1, 2));
  EXPECT_THAT(ids(pair.second->ask_leases(2)), ElementsAre(3));
  const Leases none = pair.first->ask_leases(1);  // it still holds two
  EXPECT_THAT(none.leases, IsEmpty());
  EXPECT_EQ(none.end, 0);
  pair.first->leases_done(of_plan(with_leases(3), {1, 2}));
  auto waiting = std::async(std::launch::async, [&] { return pair.first->ask_leases(1); });
  pair.second->leases_done(of_plan(with_leases(3), {3}));
  EXPECT_EQ(waiting.get().end, 1);
  EXPECT_EQ(pair.second->ask_leases(1).end, 1);
  EXPECT_THROW(pair.first->ask_leases(0), Error);
}

TEST(MemberLeases, OfAWorkerThatEndsGoToTheOneThatWaits) {
  Pair pair(with_leases(2));
  pair.first->ask_leases(2);
  auto waiting = std::async(std::launch::async, [&] { return pair.second->ask_leases(2); });
  pair.first.reset();
  EXPECT_THAT(ids(waiting.get()), ElementsAre(1, 2));
}

TEST(MemberLeases, AnAnswerAfterTheDeadlineIsNotLost) {
  Pair pair(with_leases(2), 60s, /*second_deadline=*/kShort);
  pair.first->ask_leases(2);
  EXPECT_THAT([&] { pair.second->ask_leases(1); },
              ThrowsMessage<TimeoutError>(
                  AllOf(HasSubstr("worker 1"), HasSubstr("leases"), HasSubstr("worker 0 has made no progress"))));
  pair.first.reset();  // now it is answered, and nobody asks
  EXPECT_THAT(ids(pair.second->ask_leases(1)), ElementsAre(1));
  EXPECT_THAT(ids(pair.second->ask_leases(1)), ElementsAre(2));
}

// ---- the end ------------------------------------------------------------------------------------------------------

TEST(MemberFinish, WaitsForTheOthers) {
  Pair pair(agreement_of());
  auto first = std::async(std::launch::async, [&] { pair.first->finish(); });
  pair.second->finish();
  first.get();
}

TEST(MemberFinish, NamesTheWorkerThatMakesNoProgress) {
  CoordinatorHost host({.workers = 2, .heartbeat = 20ms});
  Member member(host.member(0, kShort));
  EXPECT_THAT([&] { member.finish(); },
              ThrowsMessage<TimeoutError>(AllOf(HasSubstr("worker 0"), HasSubstr("worker 1"))));
  host.call([](Coordinator& coordinator) { coordinator.gone(1); });
  member.finish();
}

TEST(MemberFinish, GoesOnWhileTheOthersMakeProgress) {
  Pair pair(agreement_of(), /*first_deadline=*/3s, /*second_deadline=*/200ms);
  std::thread busy([&] {
    for (std::int64_t step = 1; step <= 20; ++step) {
      EXPECT_THROW(pair.second->wait_minimum_clock(1000), TimeoutError);  // passes the time
      pair.second->report({.step = step});                                // beats are enough
    }
    pair.second.reset();
  });
  pair.first->finish();
  busy.join();
}

}  // namespace
}  // namespace downpour::ps
