// The launcher with real parameter servers and workers that train (programs/trainer.cpp).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Json = nlohmann::json;

// A job that cannot go on ends when its processes have started and found that out.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto kSoon = std::chrono::seconds(20);
#else
constexpr auto kSoon = std::chrono::seconds(3);
#endif

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
  std::filesystem::path snapshots() const { return folder_.path() / "run/snapshots"; }
  std::filesystem::path data_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(snapshots())) {
      if (entry.path().extension() == ".safetensors") {
        return entry.path();
      }
    }
    ADD_FAILURE() << "no snapshot in " << snapshots();
    return {};
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
  EXPECT_EQ(totals["samples"], 2 * 40 * 64);
  EXPECT_EQ(totals["applied"], 2 * 2 * 40) << "pushes of two workers to two shards";
  constexpr int kModelBytes = 4 * 1000;
  EXPECT_EQ(totals["pushed_bytes"], 2 * 40 * kModelBytes);
  EXPECT_EQ(totals["pulled_bytes"], (2 * 40 + 1) * kModelBytes) << "each step, and once more in the end";
  int with_a_staleness = 0;
  for (const auto& [bucket, count] : totals["staleness"].items()) {
    with_a_staleness += count.get<int>();
  }
  EXPECT_EQ(with_a_staleness, totals["applied"]);
  EXPECT_LT(totals["largest_staleness"], 40) << "of the other's pushes";
  EXPECT_GT(totals["samples_per_s"], 0);
  for (const char* nothing : {"lost", "stale", "refused", "duplicate", "replayed"}) {
    EXPECT_EQ(totals[nothing], 0) << nothing;
  }
  EXPECT_TRUE(summary()["restarts"].empty());
  EXPECT_TRUE(summary()["failures"].empty());
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

TEST_F(Servers, AWorkerThatHeedsNoSignalCostsNoSnapshot) {
  Launched job({"run", "--run-folder", (folder_.path() / "run").string(), "-s", "2", "--grace", "3", "--", "sh", "-c",
                concat("trap '' TERM INT; exec ", test_program("trainer"), " 40 ", fifo_)});
  job.wait_for("half-way");
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.err(), Not(HasSubstr("CUT OFF")));
  EXPECT_FALSE(std::filesystem::is_empty(snapshots()));
}

// It would end by itself, if it went on.
TEST_F(Servers, AWorkerThatStandsStillCostsNoSnapshot) {
  Launched job({"run", "--run-folder", (folder_.path() / "run").string(), "-s", "2", "--grace", "3", "--", "sh", "-c",
                concat("trap 'exit 0' TERM; ", test_program("trainer"), " 40 ", fifo_, " & kill -STOP $$")});
  job.wait_for("half-way");
  job.signal_group(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.err(), Not(HasSubstr("CUT OFF")));
  EXPECT_FALSE(std::filesystem::is_empty(snapshots()));
}

TEST_F(Servers, AServerThatCannotWriteItsLastSnapshotInTimeIsNamed) {
  const auto job = train({"-s", "2", "-w", "1", "--grace", "0.5"});
  job->wait_for("half-way");
  ::kill(pid_of(*job, "server", 1), SIGSTOP);
  job->signal_group(SIGINT);
  EXPECT_EQ(job->wait(), 130);
  EXPECT_THAT(job->err(), HasSubstr("server 1 was killed before it had written its last snapshot"));
  EXPECT_THAT(job->err(), HasSubstr("CUT OFF    server 1: killed"));
  EXPECT_EQ(summary()["servers_cut_off"], Json({1}));
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

// Its last snapshot goes into a FIFO that nobody empties.
TEST_F(Servers, AServerKilledAfterEveryWorkerHasFinishedIsAWarning) {
  std::filesystem::create_directories(snapshots());
  ASSERT_EQ(::mkfifo((snapshots() / "shard-0-of-1.safetensors.tmp").c_str(), 0600), 0);
  Launched job({"run", "--json", "-", "--run-folder", (folder_.path() / "run").string(), "-s", "1",
                "--snapshot-interval", "100000", "--", "sh", "-c",
                concat(test_program("trainer"), " 40 ", fifo_, "; echo finished; head -c 1 < ", fifo_, ".1")});
  job.wait_for("half-way");
  gates_[0].let_through();
  job.wait_for("finished");
  ::kill(pid_of(job, "server", 0), SIGKILL);
  job.wait_for("every worker had finished, only its last snapshot may be missing");
  gates_[1].let_through();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("warning: server 0: killed by SIGKILL (signal 9) when every worker had finished"));
  EXPECT_EQ(summary()["failures"].size(), 1u);
  EXPECT_TRUE(summary()["cause"].is_null());
}

// ---- trouble with snapshots -----------------------------------------------------------------------------------------------

// Root may write everywhere, but not below a file. One that is there from the beginning is refused (run_test.cpp).
TEST_F(Servers, TrainingGoesOnLoudlyWhereNoSnapshotCanBeWritten) {
  const std::string file = (folder_.path() / "file").string();
  std::ofstream(file) << "no folder";
  std::filesystem::create_directories(snapshots());
  const auto job = train({"-s", "1", "-w", "1", "--snapshot-interval", "100000"});
  job->wait_for("half-way");
  ASSERT_EQ(::renameat2(AT_FDCWD, snapshots().c_str(), AT_FDCWD, file.c_str(), RENAME_EXCHANGE), 0);
  gates_[0].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("no snapshot could be written, training goes on without"));
  EXPECT_THAT(job->err(), HasSubstr("value 40\n"));
  EXPECT_THAT(job->err(), HasSubstr("SNAPSHOTS FAIL: '" + snapshots().string() + "'"));
  EXPECT_THAT(summary()["totals"]["snapshot_error"], HasSubstr(snapshots().string()));
  EXPECT_LE(summary()["totals"]["snapshots"], 1) << "at most that of the initial values";
  EXPECT_EQ(read_file(snapshots()), "no folder");
}

// A limit on the size of files is met with a signal, whose default action would end the server.
TEST_F(Servers, ASnapshotThatMayNotGrowIsAsOneOnAFullDisk) {
  const auto job = train({"-s", "1", "-w", "1", "--snapshot-interval", "100000"});
  job->wait_for("half-way");
  const rlimit small{.rlim_cur = 1000, .rlim_max = 1000};
  ASSERT_EQ(::prlimit(pid_of(*job, "server", 0), RLIMIT_FSIZE, &small, nullptr), 0);
  gates_[0].let_through();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("value 40\n"));
  EXPECT_THAT(job->err(), HasSubstr("SNAPSHOTS FAIL: "));
  EXPECT_THAT(summary()["totals"]["snapshot_error"], HasSubstr("File too large"));
  EXPECT_TRUE(summary()["failures"].empty());
}

class BrokenSnapshots : public Servers {
 protected:
  // A job ends well; what it left is broken by `harm`, and then the same job is started once more.
  void run_twice(const std::function<void(const std::filesystem::path&)>& harm) {
    gates_[0].let_through();
    ASSERT_EQ(train({"-s", "1", "-w", "1"})->wait(), 0);
    harm(data_file());
    const auto begun = std::chrono::steady_clock::now();
    again_ = train({"-s", "1", "-w", "1"});
    EXPECT_EQ(again_->wait(), kHopelessCode) << again_->err();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kSoon);
    EXPECT_THAT(again_->err(), HasSubstr("server 0 failed first"));
    EXPECT_THAT(again_->err(), HasSubstr("from a copy, or start with another --run-folder"));
    EXPECT_THAT(again_->err(), HasSubstr("a restart would not help"));
    EXPECT_TRUE(summary()["restarts"].empty());
  }

  std::unique_ptr<Launched> again_;
};

TEST_F(BrokenSnapshots, ATruncatedOneIsRefusedWithWhatIsMissing) {
  std::uintmax_t size = 0;
  run_twice([&size](const std::filesystem::path& file) {
    size = std::filesystem::file_size(file);
    std::filesystem::resize_file(file, size - 100);
  });
  EXPECT_THAT(again_->err(), HasSubstr(concat("bytes ", size - 100, " to ", size, " are missing")));
}

TEST_F(BrokenSnapshots, ACorruptedOneIsRefusedWithTheBytesConcerned) {
  std::uintmax_t size = 0;
  run_twice([&size](const std::filesystem::path& path) {
    size = std::filesystem::file_size(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2));
    file.put('\x5a');
  });
  EXPECT_THAT(again_->err(), HasSubstr(concat("corrupted: bytes 0 to ", size)));
}

// ---- a refused worker -----------------------------------------------------------------------------------------------------

TEST_F(Servers, AWorkerWithAnotherModelEndsTheJobAtOnceAndIsNotRestarted) {
  Launched job({"run", "--json", "-", "--run-folder", (folder_.path() / "run").string(), "-s", "1", "-w", "2", "--",
                "sh", "-c", "exec " + test_program("trainer") + " 40 " + fifo_ + " $((1000 + RANK))"});
  EXPECT_EQ(job.wait(), 1) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("trainer: worker [01] is refused: .*something else.*100[01]"))
      << "the worker's own words";
  EXPECT_THAT(job.err(), HasSubstr("a restart would not help"));
  EXPECT_THAT(job.out(), Not(HasSubstr("\"event\":\"restart\"")));
  EXPECT_TRUE(summary()["restarts"].empty());
  EXPECT_THAT(summary()["cause"]["hint"], HasSubstr("something else"));
}

TEST_F(Servers, TheSummaryHasTheLastLossAndGradientNorm) {
  gates_[0].let_through();
  const auto job = train({"-s", "1", "-w", "1"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_NEAR(summary()["totals"]["loss"], 1.0 / 40, 1e-9);
  EXPECT_NEAR(summary()["totals"]["gradient_norm"], std::sqrt(1000.0), 1e-3);
  EXPECT_EQ(summary()["totals"]["lost"], 0);
}

}  // namespace
}  // namespace downpour::launch
