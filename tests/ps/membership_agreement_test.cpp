#include "csrc/ps/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// ---- the agreement --------------------------------------------------------------------------------------------------

TEST(MembershipAgreement, TheFirstOfferDecidesAndServersHearIt) {
  Job job(2, 2);
  job.everyone_joins();
  const Actions first = job.membership.offer(1, agreement_of());
  EXPECT_THAT(targets<SendSchema>(first), ElementsAre("server 0", "server 1"));
  ASSERT_TRUE(job.membership.agreement());
  EXPECT_EQ(*job.membership.agreement(), agreement_of());
  EXPECT_THAT(job.membership.offer(0, agreement_of()), IsEmpty());
}

TEST(MembershipAgreement, WorkersHearAgreedWhenAllServersAreReady) {
  Job job(2, 2);
  job.everyone_joins();
  const ServerReady ready = ready_for(agreement_of());
  job.membership.offer(0, agreement_of());
  EXPECT_THAT(job.membership.server_ready(0, ready), IsEmpty());
  EXPECT_THAT(targets<SendSchema>(job.membership.server_ready(1, ready)), ElementsAre("worker 0"));
  EXPECT_THAT(job.membership.server_ready(1, ready), IsEmpty());
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(1, agreement_of())), ElementsAre("worker 1"));
}

TEST(MembershipAgreement, WhoWaitsForItIsToldThatAServerMakesItsShards) {
  Job job(2, 1);
  job.join_server(0);
  job.join_worker(0);
  job.membership.offer(0, agreement_of());
  const auto told = only<SendMinimumClock>(job.pass(2s, {kWorker0, kServer0}));
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().minimum.slowest, -1);
  EXPECT_EQ(told.back().minimum.server, 0);
  EXPECT_LT(told.back().minimum.stalled_nanoseconds, 1'000'000'000);
}

TEST(MembershipAgreement, AServerThatComesLateHearsIt) {
  Job job(1, 2);
  job.join_server(0);
  job.join_worker(0);
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(0, agreement_of())), ElementsAre("server 0"));
  const Actions late = job.join_server(1);
  EXPECT_THAT(targets<SendSchema>(late), ElementsAre("server 1"));
  EXPECT_LT(*place<SendJoined>(late), *place<SendSchema>(late));
}

TEST(MembershipAgreement, ARestartedServerHearsItAgainWithAllFences) {
  Job job(3, 2);
  job.starts(agreement_of());
  job.lose(kWorker1);
  job.join_worker(1, 900);
  job.lose(kWorker1);
  job.lose(kServer1);
  const Actions actions = job.join_server(1, 901);
  EXPECT_THAT(targets<SendSchema>(actions), ElementsAre("server 1"));
  ASSERT_THAT(targets<SendFence>(actions), ElementsAre("server 1"));
  EXPECT_EQ(only<SendFence>(actions)[0].fence.worker, 1);
  EXPECT_EQ(only<SendFence>(actions)[0].fence.below_incarnation, 3u);
}

TEST(MembershipAgreement, ARestartedServerHearsOfFencesOfBeforeTheLifeThatGoesOn) {
  Job job(1, 1);
  job.starts(agreement_of());
  job.lose(kWorker0);
  job.lose(kServer0);
  job.join_worker(0, 900);
  const auto fences = only<SendFence>(job.join_server(0, 901));
  ASSERT_THAT(fences, SizeIs(1));
  EXPECT_EQ(fences[0].fence.below_incarnation, 2u);
}

TEST(MembershipAgreement, AWorkerThatAgreesWhileAServerRestartsWaitsForIt) {
  Job job(2, 2);
  job.starts(agreement_of());
  job.lose(kServer0);
  job.lose(kWorker1);
  job.join_worker(1, 900);
  EXPECT_THAT(only<SendSchema>(job.membership.offer(1, agreement_of())), IsEmpty());
  job.join_server(0, 901);
  EXPECT_THAT(targets<SendSchema>(job.membership.server_ready(0, ready_for(agreement_of()))), ElementsAre("worker 1"));
}

TEST(MembershipAgreement, AnotherModelIsRefusedToThatWorkerAndNamesTheDifference) {
  Job job(2, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement_of(4));
  const Actions actions = job.membership.offer(1, agreement_of(8));
  const auto refused = only<SendSchemaRefused>(actions);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].to, kWorker1);
  EXPECT_THAT(refused[0].reason, HasSubstr("worker 0"));
  EXPECT_THAT(refused[0].reason, HasSubstr(*first_difference(agreement_of(8).schema, agreement_of(4).schema)));
  EXPECT_THAT(notes(actions), HasSubstr("worker 1 is refused"));
  EXPECT_THAT(targets<SendSchema>(job.membership.server_ready(0, ready_for(agreement_of(4)))), ElementsAre("worker 0"));
}

TEST(MembershipAgreement, WhyAWorkerWasRefusedIsKnownUntilItAgreesOrJoinsAgain) {
  Job job(2, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement_of(4));
  job.membership.offer(1, agreement_of(8));
  EXPECT_THAT(job.membership.refused(1), HasSubstr("something else"));
  EXPECT_EQ(job.membership.refused(0), "");
  EXPECT_EQ(job.membership.refused(7), "") << "no such worker";
  job.say_goodbye(1);
  EXPECT_THAT(job.membership.refused(1), HasSubstr("something else"))
      << "its process may end later than its connection";
  job.join_worker(1, 900);
  EXPECT_EQ(job.membership.refused(1), "");
  job.membership.offer(1, agreement_of(8));
  job.membership.offer(1, agreement_of(4));
  EXPECT_EQ(job.membership.refused(1), "");
}

TEST(MembershipAgreement, ADifferingJobOptionIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(Agreement&)>>> changes = {
      {"max_staleness", [](Agreement& a) { a.max_staleness = 3; }},
      {"max_lead", [](Agreement& a) { a.max_lead = 3; }},
      {"warm_start_steps", [](Agreement& a) { a.warm_start_steps = 3; }},
      {"warm_up_steps", [](Agreement& a) { a.warm_up_steps = 3; }},
      {"samples", [](Agreement& a) { a.samples = 3; }},
      {"lease_samples", [](Agreement& a) { a.lease_samples = 3; }},
      {"epochs", [](Agreement& a) { a.epochs = 3; }},
      {"seed", [](Agreement& a) { a.seed = 3; }},
      {"shuffle", [](Agreement& a) { a.shuffle = 0; }}};
  for (const auto& [option, change] : changes) {
    Job job(2, 1);
    job.everyone_joins();
    job.membership.offer(0, with_leases(8));
    Agreement other = with_leases(8);
    change(other);
    const auto refused = only<SendSchemaRefused>(job.membership.offer(1, other));
    ASSERT_THAT(refused, SizeIs(1)) << option;
    EXPECT_THAT(refused[0].reason, HasSubstr(option + " is "));
  }
}

TEST(MembershipAgreement, SeveralWorkersWithoutAServerAreToldTheFlag) {
  Job job(2, 0);
  job.everyone_joins();
  const auto refused = only<SendSchemaRefused>(job.membership.offer(0, agreement_of()));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("--servers"));
  EXPECT_FALSE(job.membership.agreement());
}

TEST(MembershipAgreement, OneWorkerNeedsNoServer) {
  Job job(1, 0);
  job.everyone_joins();
  EXPECT_THAT(targets<SendSchema>(job.membership.offer(0, agreement_of())), ElementsAre("worker 0"));
}

TEST(MembershipAgreement, AnOfferThatMakesNoSenseDecidesNothing) {
  for (const auto& change : std::vector<std::function<void(Agreement&)>>{
           [](Agreement& a) { a.max_lead = -2; }, [](Agreement& a) { a.max_staleness = -5; },
           [](Agreement& a) { a.warm_start_steps = -1; }, [](Agreement& a) { a.warm_up_steps = -1; },
           [](Agreement& a) { a.warm_start_steps = a.warm_up_steps = 1; }, [](Agreement& a) { a.samples = -1; },
           [](Agreement& a) { a.lease_samples = 0; }, [](Agreement& a) { a.epochs = -1; },
           [](Agreement& a) { a.epochs = std::int64_t{1} << 40; }}) {
    Job job(1, 1);
    job.everyone_joins();
    Agreement agreement = with_leases(10);
    change(agreement);
    EXPECT_THAT(only<SendSchemaRefused>(job.membership.offer(0, agreement)), SizeIs(1));
    EXPECT_FALSE(job.membership.agreement());
    job.membership.offer(0, with_leases(10));
    EXPECT_TRUE(job.membership.agreement());
  }
}

TEST(MembershipAgreement, AServerWithShardsOfAnotherSchemaIsDisconnected) {
  Job job(1, 1);
  job.everyone_joins();
  job.membership.offer(0, agreement_of());
  const Actions actions = job.membership.server_ready(0, {12345, {}});
  EXPECT_THAT(targets<Disconnect>(actions), ElementsAre("server 0"));
  EXPECT_THAT(only<SendSchema>(actions), IsEmpty());
  EXPECT_FALSE(job.membership.live(kServer0));
}

}  // namespace
}  // namespace downpour::ps
