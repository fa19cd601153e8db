// What becomes of BatchNorm's statistics when several workers train, in real processes (programs/buffer_worker.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/optimizers/job.h"

namespace downpour {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> job(int servers, int workers) {
  return {"--servers", std::to_string(servers), "--workers", std::to_string(workers), "--quiet", "--max-restarts", "0"};
}

class BuffersShared : public ::testing::TestWithParam<std::string> {};

TEST_P(BuffersShared, BecomeTheMeanOfWhatTheWorkersSaw) {
  for (const int workers : {2, 3}) {
    testing::JobRun run(job(workers - 1, workers), "buffer_worker", {GetParam()});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.after("as expected"), SizeIs(workers));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BuffersShared, ::testing::Values("synchronous", "apart", "apart_summed"),
                         [](const auto& tested) { return tested.param; });

TEST(BuffersOfInfinities, AreNoReasonToRefuseAPush) {
  testing::JobRun run(job(1, 2), "buffer_worker", {"infinite"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("as expected"), SizeIs(2)) << run.output();
  EXPECT_THAT(run.after("buffer 'lowest' changed from or to what is no finite number"), SizeIs(2)) << run.output();
}

TEST(BuffersLocal, EachWorkerKeepsItsOwnAndTheLogSaysSoOnce) {
  testing::JobRun run(job(1, 2), "buffer_worker", {"local"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("as expected"), SizeIs(2));
  EXPECT_THAT(run.after("the module has 2 floating-point buffers"), SizeIs(1)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("('norm.running_mean' is the first): each worker keeps its own"));
}

TEST(BuffersLocal, AWorldOfOneHasNothingToSay) {
  for (const int servers : {0, 1}) {
    testing::JobRun run(job(servers, 1), "buffer_worker", {"local"});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.after("floating-point buffers"), SizeIs(0)) << run.output();
  }
}

}  // namespace
}  // namespace downpour
