// Samples over the life of more than one job, and under pushes that are dropped; in real processes (programs/resume_worker.cpp,
// programs/stale_worker.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <numeric>

#include "tests/optimizers/job.h"

namespace downpour {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::int64_t sum(const std::vector<std::string>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0},
                         [](std::int64_t all, const std::string& number) { return all + std::stoll(number); });
}

// Two workers and two servers on one run folder; 400 samples.
class SamplesResume : public ::testing::Test {
 protected:
  SamplesResume() { std::filesystem::remove_all(folder_); }
  ~SamplesResume() override { std::filesystem::remove_all(folder_); }

  testing::JobRun run(const std::string& epochs, const std::string& batch_size,
                      std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"400", epochs, batch_size};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return {{"--servers", "2", "--workers", "2", "--run-folder", folder_.string()}, "resume_worker", arguments};
  }
  // Interrupted when each worker has used `batches`.
  void interrupt_after(int batches, const std::string& epochs) const {
    testing::JobRun first = run(epochs, "4", {std::to_string(batches)});
    ASSERT_TRUE(first.wait_for("[worker 0] paused")) << first.output();
    ASSERT_TRUE(first.wait_for("[worker 1] paused")) << first.output();
    first.signal(SIGINT);
    EXPECT_EQ(first.wait(), 130) << first.output();
  }

  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("resume." + std::to_string(::getpid()));
};

TEST_F(SamplesResume, EverySampleCountsOnceAnEpochAcrossAnInterruption) {
  interrupt_after(75, "3");
  testing::JobRun second = run("3", "4");
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_THAT(second.output(), HasSubstr("150 of 300 leases were done in an earlier run"));
  EXPECT_EQ(sum(second.after("gave ")), 150) << "what is done is not given again";
  EXPECT_THAT(second.after("used "), ElementsAre("3 to 3 times", "3 to 3 times")) << second.output();
}

TEST_F(SamplesResume, MoreEpochsContinueAFinishedJob) {
  EXPECT_EQ(run("1", "4").wait(), 0);
  testing::JobRun again = run("1", "4");
  EXPECT_EQ(again.wait(), 0) << again.output();
  EXPECT_THAT(again.output(), HasSubstr("all epochs were done in an earlier run"));
  EXPECT_THAT(again.after("used "), Each("1 to 1 times"));
  testing::JobRun more = run("3", "4");
  EXPECT_EQ(more.wait(), 0) << more.output();
  EXPECT_THAT(more.output(), HasSubstr("100 of 300 leases were done in an earlier run"));
  EXPECT_THAT(more.after("first epoch "), Not(IsEmpty()));
  EXPECT_EQ(sum(more.after("gave ")), 200);
  EXPECT_THAT(more.after("used "), ElementsAre("3 to 3 times", "3 to 3 times")) << more.output();
}

// The values go on, the count of epochs does not.
TEST_F(SamplesResume, AnotherBatchSizeSaysSoAndStartsAtEpochZero) {
  EXPECT_EQ(run("2", "4").wait(), 0);
  testing::JobRun other = run("1", "5");
  EXPECT_EQ(other.wait(), 0) << other.output();
  EXPECT_THAT(other.output(), HasSubstr("another data set size, batch size, seed or shuffling"));
  EXPECT_THAT(other.output(), HasSubstr("samples start at epoch 0"));
  EXPECT_THAT(other.after("first epoch "), Each("0"));
  EXPECT_EQ(sum(other.after("gave ")), 80);
  EXPECT_THAT(other.after("used "), ElementsAre("3 to 3 times", "3 to 3 times")) << other.output();
}

// ---- max_staleness ------------------------------------------------------------------------------------------------------------

TEST(SamplesStale, ADroppedPushDecidesItsLeaseWhichNobodyGetsAgain) {
  testing::JobRun run({"--servers", "1", "--workers", "2", "--quiet", "--max-restarts", "0"}, "stale_worker",
                      {"203", "2"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_EQ(sum(run.after("batches ")), 2 * 51) << "each lease is given once";
  const std::int64_t dropped = sum(run.after("dropped "));
  EXPECT_GE(dropped, 4) << "worker 1's first push came too late";
  EXPECT_LT(dropped, 2 * 203) << "of a push at a time there is always one that is not late";
  EXPECT_THAT(run.after("counted "), ElementsAre(std::to_string(2 * 203 - dropped), std::to_string(2 * 203 - dropped)));
  EXPECT_THAT(run.after("most "), Each(AnyOf("1", "2")));
}

}  // namespace
}  // namespace downpour
