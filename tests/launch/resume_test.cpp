// Whole jobs one after another on one run folder: the next goes on where the one before has ended (programs/lease_trainer.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Resume : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(const std::string& servers, const std::vector<std::string>& program) const {
    std::vector<std::string> all = {"run", "--run-folder", (folder_.path() / "run").string(), "-s", servers, "-w", "2"};
    all.insert(all.end(), {"--", test_program("lease_trainer")});
    all.insert(all.end(), program.begin(), program.end());
    return all;
  }
  // Interrupted when both workers have done a quarter of the leases.
  void half(const std::string& servers, const std::string& epochs) const {
    Launched job(arguments(servers, {epochs, fifo_}));
    job.wait_for("[worker 0] half-way");
    job.wait_for("[worker 1] half-way");
    job.signal_group(SIGINT);
    EXPECT_EQ(job.wait(), 130) << job.err();
  }

  RunFolder folder_{"", ::testing::TempDir()};
  std::string fifo_ = (folder_.path() / "fifo").string();
  Gate gates_[2] = {Gate(fifo_ + ".0"), Gate(fifo_ + ".1")};  // where the workers of half() wait
};

TEST_F(Resume, EveryLeaseIsAppliedOnceHoweverOftenTheJobIsStarted) {
  half("2", "2");
  const Finish second = launch(arguments("2", {"2"}));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("20 of 40 leases were done in an earlier run"));
  EXPECT_THAT(second.out, HasSubstr("applied 1 to 1 times, behind: 0\n"));
  const auto summary = nlohmann::json::parse(read_file((folder_.path() / "run/summary.json").string()));
  EXPECT_EQ(summary["totals"]["applied"], 2 * 20) << "those of this run";
  EXPECT_EQ(summary["totals"]["duplicate"], 0) << "what is done is not dealt again";
}

TEST_F(Resume, AFinishedJobSaysSoAndGoesOnForMoreEpochs) {
  const Finish first = launch(arguments("1", {"1"}));
  EXPECT_THAT(first.out, HasSubstr("applied 1 to 1 times, behind: 0\n"));
  EXPECT_THAT(first.err, Not(HasSubstr("earlier run")));
  const Finish again = launch(arguments("1", {"1"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("all epochs were done in an earlier run"));
  EXPECT_THAT(again.out, HasSubstr("applied 1 to 1 times, behind: 0\n"));
  const Finish more = launch(arguments("1", {"3"}));
  EXPECT_THAT(more.err, HasSubstr("20 of 60 leases were done in an earlier run"));
  EXPECT_THAT(more.out, HasSubstr("applied 1 to 1 times, behind: 0\n"));
}

TEST_F(Resume, WithAnotherNumberOfServersIsRefused) {
  half("2", "1");
  const Finish other = launch(arguments("3", {"1"}));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("expected snapshots of 3 shards, found 'shard-0-of-2.json' of 2"));
  EXPECT_THAT(other.err, HasSubstr("--servers 2"));
  EXPECT_EQ(launch(arguments("2", {"1"})).exit_code, 0) << "nothing was changed";
}

}  // namespace
}  // namespace downpour::launch
