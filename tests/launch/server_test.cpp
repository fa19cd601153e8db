// The launcher with real parameter servers and workers that train (programs/trainer.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

using Json = nlohmann::json;

class Servers : public ::testing::Test {
 protected:
  std::unique_ptr<Launched> train(std::vector<std::string> options) {
    std::vector<std::string> arguments = {"run", "--json", "-", "--run-folder", (folder_.path() / "run").string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", test_program("trainer"), "40", fifo_});
    return std::make_unique<Launched>(arguments);
  }
  static int pid_of(const Launched& job, const std::string& role, int rank) {
    int pid = -1;
    std::istringstream lines(job.out());
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      const Json event = Json::parse(line);
      if (event["event"] == "start" && event["role"] == role && event["rank"] == rank) {
        pid = event["pid"];
      }
    }
    return pid;
  }
  Json summary() const { return Json::parse(read_file((folder_.path() / "run/summary.json").string())); }

  RunFolder folder_{"", ::testing::TempDir()};
  std::string fifo_ = (folder_.path() / "fifo").string();
  Gate gates_[2] = {Gate(fifo_ + ".0"), Gate(fifo_ + ".1")};  // where the workers wait half-way
};

TEST_F(Servers, TwoWorkersTrainAndTheSummaryAddsUp) {
  const auto job = train({"-s", "2", "-w", "2"});
  job->wait_for("[worker 0] half-way");
  job->wait_for("[worker 1] half-way");
  job->wait_for("\"event\":\"progress\"");  // beats of everybody have come by then
  gates_[0].let_through();
  gates_[1].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 80\n"));
  EXPECT_THAT(job->err(), HasSubstr("succeeded after"));
  const Json totals = summary()["totals"];
  EXPECT_GE(totals["samples"], 2 * 20 * 64);
  EXPECT_EQ(totals["applied"], 2 * 2 * 40) << "pushes of two workers to two shards";
  EXPECT_GT(totals["pushed_bytes"], 0);
  EXPECT_GT(totals["pulled_bytes"], 0);
  EXPECT_EQ(totals["lost"], 0);
  EXPECT_TRUE(job->all_gone());
}

TEST_F(Servers, AKilledWorkerIsRestartedAndRejoins) {
  const auto job = train({"-s", "1", "-w", "2"});
  job->wait_for("[worker 0] half-way");
  job->wait_for("[worker 1] half-way");
  ::kill(pid_of(*job, "worker", 1), SIGKILL);
  job->wait_for("[worker 1] half-way", 2);  // its next life trains all 40 steps again
  gates_[0].let_through();
  gates_[1].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 100\n")) << "40 + 20 + 40";
  EXPECT_EQ(summary()["restarts"][0]["role"], "worker");
}

TEST_F(Servers, AKilledServerKeepsItsPortAndTheWorkersGoOn) {
  const auto job = train({"-s", "2", "-w", "1", "--snapshot-interval", "0.05"});
  job->wait_for("half-way");
  const int killed = pid_of(*job, "server", 0);
  ::kill(killed, SIGKILL);
  job->wait_for("server 0: killed by SIGKILL");
  gates_[0].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 40\n"))
      << "nothing is lost or doubled: the snapshot, and replay for the rest";
  EXPECT_NE(pid_of(*job, "server", 0), killed);
  EXPECT_EQ(summary()["totals"]["applied"], 2 * 40) << "replayed ones once";
  EXPECT_EQ(summary()["restarts"][0]["role"], "server");
}

TEST_F(Servers, ASilentServerIsKilledAndRestarted) {
  const auto job = train({"-s", "1", "-w", "1", "--silence", "1"});
  job->wait_for("half-way");
  ::kill(pid_of(*job, "server", 0), SIGSTOP);
  job->wait_for("--silence");
  gates_[0].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 40\n"));
  EXPECT_THAT(summary()["failures"][0]["hint"], HasSubstr("had not been heard from"));
}

TEST_F(Servers, AFailureTellsTheOthersWhy) {
  const auto job = train({"-s", "1", "-w", "2", "--max-restarts", "0"});
  job->wait_for("[worker 0] half-way");
  job->wait_for("[worker 1] half-way");
  ::kill(pid_of(*job, "worker", 1), SIGKILL);
  EXPECT_EQ(job->wait(), 137);
  EXPECT_THAT(job->err(), HasSubstr("worker 1 failed first: killed by SIGKILL"));
  EXPECT_TRUE(job->all_gone());
}

TEST_F(Servers, CtrlCLeavesASnapshot) {
  const auto job = train({"-s", "1", "-w", "1"});
  job->wait_for("half-way");
  job->signal_group(SIGINT);
  EXPECT_EQ(job->wait(), 130);
  const auto snapshots = folder_.path() / "run/snapshots";
  ASSERT_TRUE(std::filesystem::exists(snapshots)) << job->err();
  EXPECT_FALSE(std::filesystem::is_empty(snapshots)) << job->err();
}

TEST_F(Servers, AServerMayDieAgainAndAgain) {
  const auto job = train({"-s", "1", "-w", "1", "--max-restarts", "20"});
  job->wait_for("half-way");
  for (int death = 0; death < 5; ++death) {
    ::kill(pid_of(*job, "server", 0), SIGKILL);
    // The event "ready" of its next life.
    job->wait_for("\"role\":\"server\",\"rank\":0,\"restart\":" + std::to_string(death + 1) + "}");
  }
  gates_[0].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 40\n"));
}

}  // namespace
}  // namespace downpour::launch
