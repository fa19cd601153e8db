#include "csrc/ps/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/ps/membership_job.h"

namespace downpour::ps {
namespace {

using namespace membership_job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

// ---- joining --------------------------------------------------------------------------------------------------------

TEST(MembershipJoin, AWorkerHearsItsIncarnationTheSizesAndWhereItsClockStarts) {
  Job job(3, 2, 4);
  const Actions actions = job.join_worker(1);
  ASSERT_THAT(actions, SizeIs(2));
  const auto& joined = std::get<SendJoined>(actions[0]);
  EXPECT_EQ(joined.to, kWorker1);
  EXPECT_EQ(joined.joined.incarnation, 1u);
  EXPECT_EQ(joined.joined.workers, 3);
  EXPECT_EQ(joined.joined.shards, 4);
  EXPECT_EQ(std::get<SendMinimumClock>(actions[1]).minimum.clock, 0);
  EXPECT_TRUE(job.membership.live(kWorker1));
}

TEST(MembershipJoin, ShardsAreOnePerServerUnlessSaidOtherwise) {
  Job job(1, 3);
  EXPECT_EQ(only<SendJoined>(job.join_server(2))[0].joined.shards, 3);
}

TEST(MembershipJoin, AnIndexOutOfRangeNamesTheRange) {
  Job job(2, 1);
  EXPECT_THAT([&] { job.join_worker(2); },
              ThrowsMessage<Error>(HasSubstr("worker 2 has no place in this job: its workers are 0 to 1")));
  EXPECT_THAT([&] { job.join_worker(-1); }, ThrowsMessage<Error>(HasSubstr("worker -1")));
  EXPECT_THAT([&] { job.join_server(1); }, ThrowsMessage<Error>(HasSubstr("servers are 0 to 0")));
  Job serverless(1, 0);
  EXPECT_THAT([&] { serverless.join_server(0); }, ThrowsMessage<Error>(HasSubstr("--servers")));
}

TEST(MembershipJoin, ATakenIndexNamesBothProcesses) {
  Job job(2, 1);
  job.join_worker(1, 41);
  EXPECT_THAT([&] { job.join_worker(1, 42); },
              ThrowsMessage<Error>(HasSubstr("worker 1 is taken: process 41 holds it, process 42 asks for it")));
  EXPECT_EQ(job.membership.incarnation(1), 1u);
  job.join_server(0, 51);
  EXPECT_THAT([&] { job.join_server(0, 52); }, ThrowsMessage<Error>(HasSubstr("server 0 is taken: process 51")));
}

TEST(MembershipJoin, OptionsWithoutAWorkerAreRefused) {
  EXPECT_THROW(Membership({.workers = 0}), Error);
  EXPECT_THROW(Membership({.workers = 1, .servers = -1}), Error);
}

TEST(MembershipJoin, ALostWorkerIsFencedOnAllServersBeforeItsNextLifeHearsOfIt) {
  Job job(2, 2);
  job.everyone_joins();
  const Actions lost = job.lose(kWorker1);
  EXPECT_THAT(targets<SendFence>(lost), ElementsAre("server 0", "server 1"));
  EXPECT_EQ(only<SendFence>(lost)[0].fence.worker, 1);
  EXPECT_EQ(only<SendFence>(lost)[0].fence.below_incarnation, 2u);
  const Actions joined = job.join_worker(1, 500);
  EXPECT_THAT(only<SendFence>(joined), IsEmpty());  // told already
  EXPECT_EQ(only<SendJoined>(joined)[0].joined.incarnation, 2u);
  EXPECT_THAT(notes(joined), HasSubstr("worker 1 joins again, incarnation 2"));
}

TEST(MembershipJoin, TheSameProcessMayJoinAgainWhileItsFormerLifeStillCounts) {
  Job job(1, 2);
  job.everyone_joins();
  const Actions actions = job.join_worker(0);
  EXPECT_THAT(targets<SendFence>(actions), ElementsAre("server 0", "server 1"));
  EXPECT_LT(*place<SendFence>(actions), *place<SendJoined>(actions));
  EXPECT_EQ(job.membership.incarnation(0), 2u);
}

TEST(MembershipJoin, AWorkerThatSaidGoodbyeIsFencedWhenItComesBack) {
  Job job(1, 1);
  job.everyone_joins();
  EXPECT_THAT(only<SendFence>(job.say_goodbye(0)), IsEmpty());
  EXPECT_THAT(targets<SendFence>(job.join_worker(0, 77)), ElementsAre("server 0"));
}

TEST(MembershipJoin, IncarnationsGrowByOneWithEveryLife) {
  Job job(1, 0);
  for (std::uint32_t life = 1; life <= 50; ++life) {
    EXPECT_EQ(only<SendJoined>(job.join_worker(0, life))[0].joined.incarnation, life);
    job.lose(kWorker0);
  }
}

TEST(MembershipJoin, EventsOfMembersThatAreNotLiveAreIgnored) {
  Job job(2, 1);
  job.starts(with_leases(4));
  job.lose(kWorker1);
  job.lose(kServer0);
  const std::uint64_t lease = 1;
  EXPECT_THAT(job.lose(kWorker1), IsEmpty());
  EXPECT_THAT(job.say_goodbye(1), IsEmpty());
  EXPECT_THAT(job.membership.offer(1, with_leases(4)), IsEmpty());
  EXPECT_THAT(job.membership.tick(1, 5), IsEmpty());
  EXPECT_THAT(job.membership.ask_leases(1, 1), IsEmpty());
  EXPECT_THAT(job.membership.leases_done(1, {&lease, 1}), IsEmpty());
  EXPECT_THAT(job.membership.finish(1), IsEmpty());
  EXPECT_THAT(job.membership.server_ready(0, {1, {}}), IsEmpty());
  EXPECT_THAT(job.membership.offer(7, with_leases(4)), IsEmpty());
  job.membership.heard(worker_target(7), job.clock.now());
  job.membership.beat(-3, {});
}

// ---- silence --------------------------------------------------------------------------------------------------------

TEST(MembershipSilence, IsLoggedOnceAndSoIsItsEnd) {
  Job job(1, 1);
  job.everyone_joins();
  EXPECT_THAT(notes(job.pass(1900ms, {kServer0})), IsEmpty());
  EXPECT_THAT(notes(job.pass(100ms, {kServer0})), HasSubstr("worker 0 (process 100) has not been heard for 2 s"));
  EXPECT_THAT(notes(job.pass(3s, {kServer0})), IsEmpty());
  EXPECT_THAT(notes(job.pass(100ms, {kServer0, kWorker0})), HasSubstr("worker 0 (process 100) is heard again"));
  EXPECT_THAT(notes(job.pass(1900ms, {kServer0})), IsEmpty());
}

TEST(MembershipSilence, AWorkerIsFencedAndDisconnected) {
  Job job(2, 2);
  job.starts(with_leases(4));
  job.membership.ask_leases(1, 2);
  EXPECT_THAT(only<Disconnect>(job.pass(9900ms, {kWorker0, kServer0, kServer1})), IsEmpty());
  const Actions actions = job.pass(100ms, {kWorker0, kServer0, kServer1});
  EXPECT_THAT(targets<SendFence>(actions), ElementsAre("server 0", "server 1", "worker 1"));
  EXPECT_EQ(only<SendFence>(actions)[2].fence.below_incarnation, 2u);
  ASSERT_THAT(targets<Disconnect>(actions), ElementsAre("worker 1"));
  EXPECT_THAT(only<Disconnect>(actions)[0].reason, HasSubstr("fenced"));
  EXPECT_GT(*place<Disconnect>(actions), *place<SendFence>(actions));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 2)), ElementsAre(1, 2));
  EXPECT_EQ(only<SendJoined>(job.join_worker(1))[0].joined.incarnation, 2u);  // the same process goes on
}

TEST(MembershipSilence, AServerIsReportedOnceAndNeverDisconnected) {
  Job job(1, 2);
  job.everyone_joins();
  const Actions actions = job.pass(15s, {kWorker0, kServer0});
  ASSERT_THAT(only<ServerSilent>(actions), SizeIs(1));
  EXPECT_EQ(only<ServerSilent>(actions)[0].server, 1);
  EXPECT_THAT(only<Disconnect>(actions), IsEmpty());
  job.lose(kServer1);
  job.join_server(1, 900);
  EXPECT_THAT(only<ServerSilent>(job.pass(9900ms, {kWorker0, kServer0})), IsEmpty());
  EXPECT_THAT(only<ServerSilent>(job.pass(100ms, {kWorker0, kServer0})), SizeIs(1));
}

TEST(MembershipSilence, AServerThatFallsSilentOnceMoreIsReportedOnceMore) {
  Job job(1, 1);
  job.everyone_joins();
  job.pass(11s, {kWorker0});
  job.pass(1s, {kWorker0, kServer0});
  EXPECT_THAT(only<ServerSilent>(job.pass(11s, {kWorker0})), SizeIs(1));
}

TEST(MembershipSilence, OfAServerThatWritesItsLastSnapshotIsNone) {
  Job job(1, 2);
  job.starts(agreement_of());
  job.pass(5s, {kWorker0, kServer0});  // server 1 has been silent for 5 s already
  job.membership.gone(0, job.clock.now());
  ASSERT_TRUE(job.membership.finished());
  const Actions actions = job.pass(1min);
  EXPECT_THAT(only<ServerSilent>(actions), IsEmpty());
  EXPECT_THAT(notes(actions), IsEmpty());
}

// The servers end as soon as the last one has left: one that came back would find them ending, or not.
TEST(MembershipJoin, AWorkerThatHasFinishedAndLeftIsNotTakenAgain) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.finish(0);
  job.membership.finish(1);
  job.lose(kWorker0);
  EXPECT_EQ(job.membership.refusal(kWorker0, 100), std::nullopt) << "it may come for its final values";
  job.join_worker(0);
  job.membership.finish(0);
  job.membership.leave(kWorker0, true, job.clock.now());
  EXPECT_THAT(job.membership.refusal(kWorker0, 100).value_or(""), HasSubstr("worker 0 has finished"));
  EXPECT_FALSE(job.membership.finished());
  job.membership.leave(kWorker1, true, job.clock.now());
  EXPECT_TRUE(job.membership.finished());
  EXPECT_THAT(job.membership.refusal(kWorker1, 101).value_or(""), HasSubstr("another optimizer needs another job"));
}

TEST(MembershipSilence, OfTheCoordinatorItselfIsNobodysSilence) {
  Job job(2, 1);
  job.everyone_joins();
  job.pass(9s, {kWorker0, kServer0});  // worker 1 has been silent for 9 s already
  job.clock.advance(1h);               // the machine was suspended
  EXPECT_THAT(only<Disconnect>(job.membership.check(job.clock.now())), IsEmpty());
  EXPECT_THAT(only<Disconnect>(job.pass(900ms)), IsEmpty());
  const Actions actions = job.pass(100ms);
  EXPECT_THAT(targets<Disconnect>(actions), ElementsAre("worker 1"));
}

TEST(MembershipSilence, ChecksThatComeALittleLateStillCount) {
  Job job(1, 0);
  job.everyone_joins();
  Actions all;
  for (int i = 0; i < 12; ++i) {
    job.clock.advance(900ms);
    for (Action& action : job.membership.check(job.clock.now())) {
      all.push_back(std::move(action));
    }
  }
  EXPECT_THAT(targets<Disconnect>(all), ElementsAre("worker 0"));
}

TEST(MembershipSilence, AWaitIsNotMadeLongerByAStallOfTheCoordinator) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.finish(0);
  job.clock.advance(1h);
  const auto told = only<SendMinimumClock>(job.membership.check(job.clock.now()));
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(Duration(told[0].minimum.stalled_nanoseconds), 0s);
}

TEST(MembershipSilence, MembersThatAreNotLiveAreNotLookedAt) {
  Job job(2, 2);
  job.join_worker(0);
  job.join_server(0);
  job.lose(kWorker0);
  job.lose(kServer0);
  EXPECT_THAT(job.pass(30s), IsEmpty());
}

}  // namespace
}  // namespace downpour::ps
