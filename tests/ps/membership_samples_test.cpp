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
  job.membership.server_ready(0, agreement.schema.hash());
  EXPECT_THAT(clocks(job.membership.tick(0, 1)), IsEmpty());
  job.join_worker(1);
  job.membership.offer(1, agreement);
  EXPECT_THAT(clocks(job.membership.tick(1, 1)), ElementsAre(1, 1));
}

}  // namespace
}  // namespace downpour::ps
