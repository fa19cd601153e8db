#include "csrc/ps/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "csrc/base/error.h"
#include "tests/ps/membership_job.h"

namespace downpour::ps {
namespace {

using namespace membership_job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- the clock ------------------------------------------------------------------------------------------------------

Agreement with_warm_start(std::int32_t steps) {
  Agreement agreement = with_lead(1);
  agreement.warm_start_steps = steps;
  return agreement;
}

// Worker 1's offer is answered when worker 0 has made its steps; until then worker 0 does not wait for it.
TEST(MembershipWarmStart, OthersBeginWhereWorker0Is) {
  Job job(2, 1);
  job.everyone_joins();
  job.membership.offer(0, with_warm_start(3));
  EXPECT_THAT(targets<SendSchema>(job.membership.server_ready(0, ready_for(with_warm_start(3)))),
              ElementsAre("worker 0"));
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(1, with_warm_start(3))), IsEmpty());
  EXPECT_THAT(clocks(job.membership.tick(0, 1)), ElementsAre(1, 1));
  EXPECT_THAT(clocks(job.membership.tick(0, 2)), ElementsAre(2, 2));
  const Actions actions = job.membership.tick(0, 3);
  EXPECT_THAT(targets<SendSchema>(actions), ElementsAre("worker 1"));
  ASSERT_TRUE(place<SendMinimumClock>(actions).has_value());
  EXPECT_LT(*place<SendMinimumClock>(actions), *place<SendSchema>(actions)) << "its clock begins there";
  job.membership.tick(1, 4);
  EXPECT_EQ(job.membership.minimum_clock(), 3) << "and is waited for from now on";
}

TEST(MembershipWarmStart, AHeldWorkerIsToldThatItWaitsForWorker0) {
  Job job(2, 1);
  job.everyone_joins();
  job.membership.offer(0, with_warm_start(3));
  job.membership.server_ready(0, ready_for(with_warm_start(3)));
  job.membership.offer(1, with_warm_start(3));
  const auto told = only<SendMinimumClock>(job.pass(3s, {kWorker0, kWorker1, kServer0}));
  ASSERT_FALSE(told.empty());
  const auto to_1 = std::ranges::find(told, worker_target(1), &SendMinimumClock::to);
  ASSERT_NE(to_1, told.end());
  EXPECT_EQ(to_1->minimum.slowest, 0);
}

TEST(MembershipWarmStart, EndsWithWorker0) {
  const std::vector<std::function<Actions(Job&)>> ends = {
      [](Job& job) { return job.membership.finish(0); }, [](Job& job) { return job.say_goodbye(0); },
      [](Job& job) { return job.membership.gone(0, job.clock.now()); }};
  for (const auto& end : ends) {
    Job job(2, 1);
    job.everyone_joins();
    job.membership.offer(0, with_warm_start(3));
    job.membership.server_ready(0, ready_for(with_warm_start(3)));
    job.membership.offer(1, with_warm_start(3));
    EXPECT_THAT(targets<SendSchema>(end(job)), ElementsAre("worker 1"));
  }
}

TEST(MembershipClock, LiveWorkersHearTheMinimumWhenItRises) {
  Job job(2, 1);
  job.starts(with_lead(1));
  EXPECT_THAT(job.membership.tick(0, 1), IsEmpty());
  const Actions actions = job.membership.tick(1, 2);
  EXPECT_THAT(targets<SendMinimumClock>(actions), ElementsAre("worker 0", "worker 1"));
  EXPECT_THAT(clocks(actions), ElementsAre(1, 1));
  EXPECT_EQ(only<SendMinimumClock>(actions)[0].minimum.slowest, 0);
  EXPECT_THAT(job.membership.tick(1, 3), IsEmpty());
}

TEST(MembershipClock, IsSilentWithoutALeadOrAWarmUp) {
  Job job(1, 1);
  job.starts(agreement_of());
  EXPECT_THAT(job.membership.tick(0, 1), IsEmpty());
  EXPECT_EQ(job.membership.minimum_clock(), 1);
  Agreement warm = agreement_of();
  warm.warm_up_steps = 5;
  Job other(1, 1);
  other.starts(warm);
  EXPECT_THAT(clocks(other.membership.tick(0, 1)), ElementsAre(1));
}

TEST(MembershipClock, AJoinerStartsAtTheMinimum) {
  Job job(3, 1);
  job.join_server(0);
  job.join_worker(0);
  job.join_worker(1);
  job.membership.offer(0, with_lead(2));
  job.membership.tick(0, 9);
  job.membership.tick(1, 7);
  EXPECT_THAT(clocks(job.join_worker(2)), ElementsAre(7));
  EXPECT_EQ(job.membership.minimum_clock(), 7);
  job.membership.tick(1, 9);
  EXPECT_EQ(job.membership.minimum_clock(), 7);  // the joiner's
  job.membership.tick(2, 8);
  EXPECT_EQ(job.membership.minimum_clock(), 8);
}

TEST(MembershipClock, LostLeavingFinishingAndGoneWorkersAreNotCounted) {
  const std::vector<std::function<Actions(Job&)>> ends = {
      [](Job& job) { return job.lose(kWorker0); }, [](Job& job) { return job.say_goodbye(0); },
      [](Job& job) { return job.membership.finish(0); },
      [](Job& job) { return job.membership.gone(0, job.clock.now()); }};
  for (const auto& end : ends) {
    Job job(3, 1);
    job.starts(with_lead(1));
    job.membership.tick(0, 1);
    job.membership.tick(1, 5);
    job.membership.tick(2, 6);
    EXPECT_EQ(job.membership.minimum_clock(), 1);
    EXPECT_THAT(clocks(end(job)), ::testing::Contains(5));
    EXPECT_EQ(job.membership.minimum_clock(), 5);
  }
}

TEST(MembershipClock, NeverFalls) {
  Job job(2, 1);
  job.starts(with_lead(1));
  job.membership.tick(0, 5);
  job.membership.tick(1, 5);
  EXPECT_THAT(job.membership.tick(0, 3), IsEmpty());
  job.membership.tick(0, 7);
  job.membership.tick(0, 6);  // a worker's own clock does not fall either
  job.membership.tick(1, 7);
  EXPECT_EQ(job.membership.minimum_clock(), 7);
  job.lose(kWorker0);
  job.lose(kWorker1);
  EXPECT_EQ(job.membership.minimum_clock(), 7);
  EXPECT_THAT(clocks(job.join_worker(0, 900)), ElementsAre(7));
  EXPECT_EQ(job.membership.minimum_clock(), 7);
}

TEST(MembershipClock, ThoseWhoMayWaitAreToldForWhomAndSinceWhen) {
  Job job(2, 1);
  job.starts(with_lead(1));
  job.membership.tick(0, 2);
  const Actions actions = job.pass(1s, {kWorker0, kWorker1, kServer0});
  ASSERT_THAT(targets<SendMinimumClock>(actions), ElementsAre("worker 0", "worker 1"));
  const MinimumClock minimum = only<SendMinimumClock>(actions)[0].minimum;
  EXPECT_EQ(minimum.clock, 0);
  EXPECT_EQ(minimum.slowest, 1);
  EXPECT_EQ(Duration(minimum.stalled_nanoseconds), 1s);
}

TEST(MembershipClock, WorkSeenInBeatsIsProgress) {
  Job job(2, 1);
  job.starts(with_lead(1));
  job.membership.tick(0, 2);
  job.pass(500ms, {kWorker0, kWorker1, kServer0});
  job.membership.beat(1, {.samples = 32});
  job.pass(200ms, {kWorker0, kWorker1, kServer0});
  job.membership.beat(1, {.samples = 32});  // a beat of a worker that hangs: heard, and no progress
  const Actions actions = job.pass(300ms, {kWorker0, kWorker1, kServer0});
  EXPECT_EQ(Duration(only<SendMinimumClock>(actions)[0].minimum.stalled_nanoseconds), 500ms);
}

// ---- leases ---------------------------------------------------------------------------------------------------------

TEST(MembershipLeases, AreGivenAtOnceWhereThereAreSome) {
  Job job(2, 1);
  job.starts(with_leases(5));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 2)), ElementsAre(1, 2));
  EXPECT_THAT(ids(job.membership.ask_leases(1, 9)), ElementsAre(3, 4, 5));
  EXPECT_EQ(job.membership.leases()->done_count(), 0u);
}

TEST(MembershipLeases, AWorkerThatHoldsNoneWaitsForTheOthers) {
  Job job(2, 1);
  job.starts(with_leases(2));
  job.membership.ask_leases(0, 2);
  EXPECT_THAT(job.membership.ask_leases(1, 1), IsEmpty());
  EXPECT_THAT(done(job, 0, {1}), IsEmpty());
  const Actions end = done(job, 0, {2});
  ASSERT_THAT(targets<SendLeases>(end), ElementsAre("worker 1"));
  EXPECT_EQ(only<SendLeases>(end)[0].leases.end, 1);
  EXPECT_EQ(only<SendLeases>(job.membership.ask_leases(0, 1))[0].leases.end, 1);
}

TEST(MembershipLeases, AWorkerThatHoldsSomeIsNeverKeptWaiting) {
  Job job(1, 1);
  job.starts(with_leases(1));
  job.membership.ask_leases(0, 1);
  const auto answer = only<SendLeases>(job.membership.ask_leases(0, 1));
  ASSERT_THAT(answer, SizeIs(1));
  EXPECT_THAT(answer[0].leases.leases, IsEmpty());
  EXPECT_EQ(answer[0].leases.end, 0);
}

TEST(MembershipLeases, OfALostWorkerGoToWhoeverWaitsInTheOrderOfAsking) {
  Job job(4, 1);
  job.starts(with_leases(3));
  job.membership.ask_leases(0, 3);
  job.membership.ask_leases(2, 1);
  job.membership.ask_leases(1, 1);
  job.membership.ask_leases(3, 5);
  const Actions actions = job.lose(kWorker0);
  EXPECT_THAT(targets<SendLeases>(actions), ElementsAre("worker 2", "worker 1", "worker 3"));
  EXPECT_THAT(ids(actions), ElementsAre(1, 2, 3));
  EXPECT_EQ(job.membership.leases()->given_again(), 3u);
}

TEST(MembershipLeases, AreNotGivenToAWorkerThatNoLongerWaits) {
  const std::vector<std::function<Actions(Job&)>> ends = {[](Job& job) { return job.lose(kWorker1); },
                                                          [](Job& job) { return job.say_goodbye(1); }};
  for (const auto& end : ends) {
    Job job(3, 1);
    job.starts(with_leases(1));
    job.membership.ask_leases(0, 1);
    job.membership.ask_leases(1, 1);
    end(job);
    EXPECT_THAT(job.membership.ask_leases(2, 1), IsEmpty());
    EXPECT_THAT(targets<SendLeases>(job.lose(kWorker0)), ElementsAre("worker 2"));
  }
}

TEST(MembershipLeases, OfAFormerLifeAreGivenBackBeforeTheNextOneAsks) {
  Job job(1, 1);
  job.starts(with_leases(3));
  job.membership.ask_leases(0, 2);
  job.join_worker(0);
  EXPECT_THAT(ids(job.membership.ask_leases(0, 3)), ElementsAre(1, 2, 3));
}

TEST(MembershipLeases, OfAWorkerThatLeavesOrFinishesEarlyAreGivenToOthers) {
  const std::vector<std::function<Actions(Job&)>> ends = {[](Job& job) { return job.say_goodbye(0); },
                                                          [](Job& job) { return job.membership.finish(0); }};
  for (const auto& end : ends) {
    Job job(2, 1);
    job.starts(with_leases(2));
    job.membership.ask_leases(0, 2);
    job.membership.ask_leases(1, 2);
    EXPECT_THAT(ids(end(job)), ElementsAre(1, 2));
  }
}

TEST(MembershipLeases, AreAskedForBeforeAnythingIsAgreedAndAnsweredThen) {
  Job job(1, 1);
  job.everyone_joins();
  EXPECT_THAT(job.membership.ask_leases(0, 1), IsEmpty());
  EXPECT_EQ(job.membership.leases(), nullptr);
  EXPECT_THAT(ids(job.membership.offer(0, with_leases(3))), IsEmpty()) << "the server may know of leases that are done";
  EXPECT_THAT(ids(job.membership.server_ready(0, ready_for(with_leases(3)))), ElementsAre(1));
}

TEST(MembershipLeases, WithoutADataSetEndAtOnce) {
  Job job(1, 1);
  job.starts(agreement_of());
  EXPECT_EQ(only<SendLeases>(job.membership.ask_leases(0, 1))[0].leases.end, 1);
}

TEST(MembershipLeases, AnAbsurdCountIsCutToWhatAMessageHolds) {
  Job job(1, 1);
  job.starts(with_leases(5000));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 1 << 30)), SizeIs(1024));
  EXPECT_THAT(ids(job.membership.ask_leases(0, -7)), SizeIs(1));
}

TEST(MembershipLeases, AWaitingWorkerIsToldForWhom) {
  Job job(3, 1);
  job.starts(with_leases(1));
  job.membership.ask_leases(1, 1);
  job.membership.ask_leases(0, 1);
  const Actions actions = job.pass(1s, {kWorker0, kWorker1, kWorker2, kServer0});
  EXPECT_THAT(targets<SendMinimumClock>(actions), ElementsAre("worker 0"));
}

TEST(MembershipLeases, AWaitThatNoWorkerHoldsUpIsForAServerThatIsAway) {
  Job job(1, 2);
  job.starts(with_leases(1));
  job.membership.ask_leases(0, 1);
  const std::uint64_t lease = job.membership.leases()->base() + 1;
  job.membership.leases_done(0, {&lease, 1});
  job.membership.leave(kServer1, false, job.clock.now());
  EXPECT_THAT(job.membership.ask_leases(0, 1), IsEmpty());
  job.pass(3s, {kWorker0, kServer0});
  const auto told = only<SendMinimumClock>(job.pass(1s, {kWorker0, kServer0}));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].minimum.slowest, -1);
  EXPECT_EQ(told[0].minimum.server, 1);
  EXPECT_GE(told[0].minimum.stalled_nanoseconds, 3'900'000'000);
}

// ---- the end --------------------------------------------------------------------------------------------------------

TEST(MembershipFinish, IsAnsweredWhenEveryWorkerAsked) {
  Job job(3, 1);
  job.starts(agreement_of());
  EXPECT_THAT(job.membership.finish(0), IsEmpty());
  EXPECT_THAT(job.membership.finish(2), IsEmpty());
  EXPECT_THAT(targets<SendFinished>(job.membership.finish(1)), ElementsAre("worker 0", "worker 1", "worker 2"));
  EXPECT_FALSE(job.membership.finished());
}

TEST(MembershipFinish, AskedTwiceIsAnsweredTwice) {
  Job job(1, 1);
  job.starts(agreement_of());
  EXPECT_THAT(targets<SendFinished>(job.membership.finish(0)), ElementsAre("worker 0"));
  EXPECT_THAT(targets<SendFinished>(job.membership.finish(0)), ElementsAre("worker 0"));
}

TEST(MembershipFinish, WaitsForAWorkerThatHasNotJoinedYet) {
  Job job(2, 1);
  job.join_server(0);
  job.join_worker(0);
  job.membership.offer(0, agreement_of());
  EXPECT_THAT(job.membership.finish(0), IsEmpty());
  const Actions waiting = job.pass(3s, {kWorker0, kServer0});
  EXPECT_EQ(only<SendMinimumClock>(waiting).back().minimum.slowest, 1);
  EXPECT_EQ(Duration(only<SendMinimumClock>(waiting).back().minimum.stalled_nanoseconds), 3s);
  job.join_worker(1);
  EXPECT_THAT(targets<SendFinished>(job.membership.finish(1)), ElementsAre("worker 0", "worker 1"));
}

TEST(MembershipFinish, WaitsForALostWorkerUntilItReturnsOrIsGone) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.finish(0);
  EXPECT_THAT(only<SendFinished>(job.lose(kWorker1)), IsEmpty());
  job.join_worker(1, 900);
  EXPECT_THAT(only<SendFinished>(job.lose(kWorker1)), IsEmpty());
  EXPECT_THAT(targets<SendFinished>(job.membership.gone(1, job.clock.now())), ElementsAre("worker 0"));
}

TEST(MembershipFinish, ALifeThatAskedAndDiedMustAskAgain) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.finish(1);
  job.lose(kWorker1);
  EXPECT_THAT(job.membership.finish(0), IsEmpty());
  job.join_worker(1, 900);
  EXPECT_THAT(targets<SendFinished>(job.membership.finish(1)), ElementsAre("worker 0", "worker 1"));
}

TEST(MembershipFinish, DoesNotWaitForAWorkerThatLeft) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.finish(0);
  EXPECT_THAT(targets<SendFinished>(job.say_goodbye(1)), ElementsAre("worker 0"));
}

TEST(MembershipFinish, GoneBeforeItEverJoinedIsNotWaitedForEither) {
  Job job(2, 1);
  job.join_worker(0);
  job.membership.finish(0);
  EXPECT_THAT(targets<SendFinished>(job.membership.gone(1, job.clock.now())), ElementsAre("worker 0"));
  EXPECT_THROW(job.membership.gone(2, job.clock.now()), Error);
}

TEST(MembershipFinish, GoneEndsALiveMembership) {
  Job job(2, 1);
  job.starts(with_leases(1));
  job.membership.ask_leases(1, 1);
  job.membership.ask_leases(0, 1);
  const Actions actions = job.membership.gone(1, job.clock.now());
  EXPECT_THAT(targets<SendFence>(actions), ElementsAre("server 0"));
  EXPECT_THAT(targets<Disconnect>(actions), ElementsAre("worker 1"));
  EXPECT_THAT(ids(actions), ElementsAre(1));
}

TEST(MembershipFinish, TheWaitIsMeasuredFromTheLastProgressOfAnyoneAwaited) {
  Job job(3, 1);
  job.starts(agreement_of());
  job.membership.finish(0);
  const std::vector<Target> all = {kWorker0, kWorker1, kWorker2, kServer0};
  job.pass(2s, all);
  for (const int busy : {1, 2}) {
    job.membership.tick(busy, 1);
    const auto minimum = only<SendMinimumClock>(job.pass(1s, all)).back().minimum;
    EXPECT_EQ(minimum.slowest, 3 - busy);  // the one to look at
    EXPECT_EQ(Duration(minimum.stalled_nanoseconds), 1s);
  }
}

TEST(MembershipFinish, ServersEndWhenEveryWorkerFinishedAndLeft) {
  Job job(2, 2);
  job.starts(agreement_of());
  job.membership.finish(0);
  job.membership.finish(1);
  EXPECT_THAT(only<SendFinished>(job.say_goodbye(0)), IsEmpty());  // worker 1 may still evaluate
  EXPECT_THAT(targets<SendFinished>(job.say_goodbye(1)), ElementsAre("server 0", "server 1"));
  EXPECT_TRUE(job.membership.finished());
  job.lose(kServer0);
  EXPECT_THAT(targets<SendFinished>(job.join_server(0, 900)), ElementsAre("server 0"));
}

TEST(MembershipFinish, ServersLiveOnWhileAWorkerMayBeRestarted) {
  Job job(1, 1);
  job.starts(agreement_of());
  job.say_goodbye(0);  // never finished: an exception may have unwound it
  EXPECT_FALSE(job.membership.finished());
  job.join_worker(0, 900);
  job.membership.finish(0);
  job.lose(kWorker0);  // finished, and died while it saved
  EXPECT_FALSE(job.membership.finished());
  EXPECT_THAT(targets<SendFinished>(job.membership.gone(0, job.clock.now())), ElementsAre("server 0"));
  EXPECT_TRUE(job.membership.finished());
  job.join_worker(0, 901);
  EXPECT_FALSE(job.membership.finished());
}

}  // namespace
}  // namespace downpour::ps
