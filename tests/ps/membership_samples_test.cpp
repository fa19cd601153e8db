#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/ps/agreement.h"
#include "csrc/ps/membership.h"
#include "tests/ps/membership_job.h"

// Samples are agreed upon after the model, and those who wait for the last of them do not hold up those who work on them.
namespace downpour::ps {
namespace {

using namespace membership_job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(MembershipSamples, AreAddedToAnAgreementWithoutThem) {
  Job job(2, 1);
  job.starts(agreement_of());
  EXPECT_TRUE(job.membership.leases()->all_done());
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(1, with_leases(3))), ElementsAre("worker 1"));
  EXPECT_EQ(*job.membership.agreement(), with_leases(3));
  EXPECT_THAT(ids(job.membership.ask_leases(1, 5)), ElementsAre(1, 2, 3));
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(0, with_leases(3))), ElementsAre("worker 0"));
}

TEST(MembershipSamples, AreNotTakenAwayByAWorkerThatComesLater) {
  Job job(2, 1);
  job.starts(with_leases(3));
  job.membership.ask_leases(0, 1);
  job.lose(kWorker1);
  job.join_worker(1, 900);
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(1, agreement_of())), ElementsAre("worker 1"));
  EXPECT_EQ(*job.membership.agreement(), with_leases(3));
  EXPECT_THAT(ids(job.membership.ask_leases(1, 1)), ElementsAre(2));
}

TEST(MembershipSamples, ThatDifferAreRefused) {
  Job job(2, 1);
  job.starts(agreement_of());
  job.membership.offer(0, with_leases(3));
  const auto refused = only<SendSchemaRefused>(job.membership.offer(1, with_leases(4)));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("samples is 4 here, 3 there"));
}

TEST(MembershipSamples, AnotherModelIsRefusedWithAndWithoutThem) {
  Agreement wide = agreement_of(8);
  EXPECT_TRUE(first_difference(wide, with_leases(3)));
  wide.samples = 3;
  EXPECT_TRUE(first_difference(wide, agreement_of()));
  EXPECT_FALSE(first_difference(agreement_of(), with_leases(3)));
}

TEST(MembershipSamples, WhoWaitsForLeasesDoesNotHoldTheMinimumClock) {
  Agreement agreement = with_leases(2);
  agreement.max_lead = 1;
  Job job(2, 1);
  job.starts(agreement);
  job.membership.ask_leases(0, 1);
  job.membership.ask_leases(1, 1);
  job.membership.tick(1, 1);
  done(job, 1, {2});
  EXPECT_EQ(job.membership.minimum_clock(), 0) << "worker 0 has not stepped";
  job.membership.tick(0, 1);
  EXPECT_THAT(ids(job.membership.ask_leases(1, 1)), IsEmpty());
  EXPECT_THAT(clocks(job.membership.tick(0, 5)), ElementsAre(5, 5)) << "worker 1 waits for worker 0's lease";
}

TEST(MembershipSamples, AWarmUpWaitsForThoseWhoHaveNotComeYet) {
  Agreement agreement = agreement_of();
  agreement.warm_up_steps = 2;
  Job job(2, 1);
  job.join_server(0);
  job.join_worker(0);
  job.membership.offer(0, agreement);
  job.membership.server_ready(0, ready_for(agreement));
  EXPECT_THAT(clocks(job.membership.tick(0, 1)), IsEmpty());
  job.join_worker(1);
  job.membership.offer(1, agreement);
  EXPECT_THAT(clocks(job.membership.tick(1, 1)), ElementsAre(1, 1));
}

// Two workers in a warm-up of two steps, each of two ticks behind the first one, that have done `ticks` of them.
Job warming_up(std::int64_t ticks) {
  Agreement agreement = agreement_of();
  agreement.warm_up_steps = 2;
  Job job(2, 1);
  job.starts(agreement);
  for (std::int64_t tick = 1; tick <= ticks; ++tick) {
    job.membership.tick(0, tick);
    job.membership.tick(1, tick);
  }
  return job;
}

TEST(MembershipWarmUp, AWorkerThatComesBackBeginsWhereTheOthersAre) {
  Job job = warming_up(3);
  job.lose(kWorker1);
  EXPECT_THAT(clocks(job.membership.tick(0, 4)), ElementsAre(4)) << "nobody waits for a worker that is lost";
  EXPECT_THAT(clocks(job.join_worker(1, 900)), ElementsAre(4));
  EXPECT_THAT(clocks(job.membership.tick(0, 5)), IsEmpty()) << "the warm-up is its own again";
  EXPECT_THAT(clocks(job.membership.tick(1, 5)), ElementsAre(5, 5));
}

TEST(MembershipWarmUp, AWorkerThatComesBackAfterItIsToldThatItIsOver) {
  Job job = warming_up(5);
  job.lose(kWorker1);
  job.membership.tick(0, 7);
  EXPECT_THAT(clocks(job.join_worker(1, 900)), ElementsAre(7));
  EXPECT_THAT(clocks(job.membership.tick(1, 9)), IsEmpty());
  EXPECT_THAT(clocks(job.membership.tick(0, 9)), ElementsAre(9, 9));
}

// ---- a job that goes on from the snapshots of an earlier one --------------------------------------------------------

LeaseTable of_plan(const Agreement& agreement, std::initializer_list<std::uint64_t> numbers) {
  LeaseTable leases;
  for (const std::uint64_t number : numbers) {
    leases.record(plan_base(agreement) + number);
  }
  return leases;
}

TEST(MembershipEarlier, LeasesThatAllServersHaveDecidedAreNotDealtAgain) {
  const Agreement agreement = with_leases(5);
  Job job(1, 2);
  job.everyone_joins();
  job.membership.offer(0, agreement);
  EXPECT_THAT(ids(job.membership.ask_leases(0, 5)), IsEmpty()) << "not before all servers are ready";
  job.membership.server_ready(0, ready_for(agreement, of_plan(agreement, {1, 2, 4})));
  const Actions actions = job.membership.server_ready(1, ready_for(agreement, of_plan(agreement, {2, 3, 4})));
  EXPECT_THAT(ids(actions), ElementsAre(1, 3, 5));
  EXPECT_THAT(notes(actions), HasSubstr("2 of 5 leases were done in an earlier run"));
  done(job, 0, {1, 3, 5});
  EXPECT_TRUE(job.membership.leases()->all_done());
}

TEST(MembershipEarlier, CountAlsoForSamplesThatAreAgreedUponLater) {
  const Agreement agreement = with_leases(3);
  Job job(1, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement_of());
  const Actions ready = job.membership.server_ready(0, ready_for(agreement_of(), of_plan(agreement, {1})));
  EXPECT_THAT(notes(ready), IsEmpty());
  EXPECT_THAT(notes(job.membership.offer(0, agreement)), HasSubstr("1 of 3 leases were done"));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 5)), ElementsAre(2, 3));
}

TEST(MembershipEarlier, AllDoneEndsTheSamplesAtOnceAndSaysWhatToDo) {
  const Agreement agreement = with_leases(3);
  Job job(1, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement);
  const Actions ready = job.membership.server_ready(0, ready_for(agreement, of_plan(agreement, {1, 2, 3, 4, 5, 6})));
  EXPECT_THAT(notes(ready), HasSubstr("3 of 3 leases"));
  EXPECT_THAT(notes(ready), HasSubstr("ask for more epochs, or start with another --run-folder"));
  const auto answers = only<SendLeases>(job.membership.ask_leases(0, 1));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].leases.end, 1);
}

TEST(MembershipEarlier, MoreEpochsGoOnBehindThem) {
  Job job(1, 1);
  job.everyone_joins();
  job.membership.offer(0, with_leases(2, 2));
  job.membership.server_ready(0, ready_for(agreement_of(), of_plan(with_leases(2, 1), {1, 2})));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 9)), ElementsAre(3, 4));
}

TEST(MembershipEarlier, LeasesOfAnotherPlanDoNotCountAndAreNoted) {
  const Agreement agreement = with_leases(3);
  Job job(1, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement);
  const Actions ready = job.membership.server_ready(0, ready_for(agreement, of_plan(with_leases(4), {1, 2})));
  EXPECT_THAT(notes(ready), HasSubstr("samples start at epoch 0"));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 9)), ElementsAre(1, 2, 3));
}

TEST(MembershipEarlier, NothingIsNotedOfAFirstRunOrOfAJobWithoutSamples) {
  for (const Agreement& agreement : {agreement_of(), with_leases(3)}) {
    Job job(1, 1);
    job.everyone_joins();
    EXPECT_THAT(notes(job.membership.offer(0, agreement)), IsEmpty());
    EXPECT_THAT(notes(job.membership.server_ready(0, ready_for(agreement))), IsEmpty());
  }
}

TEST(MembershipEarlier, AServerThatRestartsInTheJobChangesNothing) {
  const Agreement agreement = with_leases(4);
  Job job(2, 1);
  job.starts(agreement);
  EXPECT_THAT(ids(job.membership.ask_leases(0, 2)), ElementsAre(1, 2));
  job.lose(kServer0);
  job.join_server(0, 900);
  const Actions ready = job.membership.server_ready(0, ready_for(agreement, of_plan(agreement, {1, 2, 3, 4})));
  EXPECT_THAT(notes(ready), IsEmpty());
  EXPECT_EQ(job.membership.leases()->done_count(), 0u);
  EXPECT_THAT(ids(job.membership.ask_leases(1, 9)), ElementsAre(3, 4));
}

TEST(MembershipEarlier, AServerThatRestartsBeforeTheOthersAreReadySaysItAgain) {
  const Agreement agreement = with_leases(3);
  Job job(1, 2);
  job.everyone_joins();
  job.membership.offer(0, agreement);
  job.membership.server_ready(0, ready_for(agreement, of_plan(agreement, {1, 2, 3})));
  job.lose(kServer0);
  job.membership.server_ready(1, ready_for(agreement, of_plan(agreement, {1, 2, 3})));
  job.join_server(0, 900);
  job.membership.server_ready(0, ready_for(agreement, of_plan(agreement, {1})));
  EXPECT_THAT(ids(job.membership.ask_leases(0, 9)), ElementsAre(2, 3));
}

// Server 0 dies after all is done and comes back from a snapshot that lacks lease 2; its worker has died too.
TEST(MembershipAudit, ARestartedServerIsAskedBeforeTheEndAndWhatItLacksIsDealtAgain) {
  const Agreement agreement = with_leases(3);
  Job job(2, 2);
  job.starts(agreement);
  const std::uint64_t base = job.membership.leases()->base();
  job.membership.ask_leases(0, 3);
  done(job, 0, {1, 2});
  job.lose(kServer0);
  job.lose(kWorker0);
  job.join_server(0, 900);
  EXPECT_THAT(ids(job.membership.ask_leases(1, 3)), ElementsAre(3));
  done(job, 1, {3});
  EXPECT_THAT(only<SendLeases>(job.membership.ask_leases(1, 3)), IsEmpty()) << "server 0 has no shards yet";
  const LeaseTable lacks_2 = LeaseTable({base + 1, base + 4}).without(LeaseTable({base + 2, base + 3}));
  const auto asked = only<AskDecided>(job.membership.server_ready(0, ready_for(agreement, lacks_2)));
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(asked[0].server, 0);
  const Actions dealt = job.membership.server_ready(0, ready_for(agreement, lacks_2));
  EXPECT_THAT(ids(dealt), ElementsAre(2));
  EXPECT_THAT(only<Note>(dealt).at(0).text, HasSubstr("1 leases were lost with server 0"));
  done(job, 1, {2});
  const auto end = only<SendLeases>(job.membership.ask_leases(1, 3));
  ASSERT_THAT(end, SizeIs(1));
  EXPECT_EQ(end[0].leases.end, 1);
}

TEST(MembershipAudit, NobodyIsAskedWhereNoServerWasRestarted) {
  Job job(1, 2);
  job.starts(with_leases(1));
  job.membership.ask_leases(0, 1);
  done(job, 0, {1});
  const Actions end = job.membership.ask_leases(0, 1);
  EXPECT_THAT(only<AskDecided>(end), IsEmpty());
  EXPECT_EQ(only<SendLeases>(end).at(0).leases.end, 1);
}

}  // namespace
}  // namespace downpour::ps
