// Real servers and workers under the launcher, killed and stopped at random moments, under ledgers that show each push that was
// lost or applied twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Json = nlohmann::json;

struct Victim {
  std::string role;
  int rank = 0;
};

class Faults : public ::testing::Test {
 protected:
  // Of the ledger, a worker: so many that over TCP a push to one of two shards leaves by page.
  static constexpr std::int64_t kSlots = 8000;

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  std::unique_ptr<Launched> start(std::vector<std::string> options, const std::vector<std::string>& program) {
    std::vector<std::string> arguments = {"run", "--json", "-", "--run-folder", path("run"), "--max-restarts", "1000"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--", test_program(program.front())});
    arguments.insert(arguments.end(), program.begin() + 1, program.end());
    return std::make_unique<Launched>(arguments);
  }

  // The newest process of that rank, and whether it has joined the job since it was started.
  struct Life {
    int pid = -1;
    bool ready = false;
  };
  static Life life_of(const Launched& job, const Victim& who) {
    Life life;
    std::istringstream lines(job.out());
    for (std::string line; std::getline(lines, line) && !lines.eof();) {
      const Json event = Json::parse(line);
      if (event.value("role", "") != who.role || event.value("rank", -1) != who.rank) {
        continue;
      }
      if (event["event"] == "start") {
        life = {event["pid"], false};
      } else if (event["event"] == "ready") {
        life.ready = true;
      }
    }
    return life;
  }

  // Waits until a life of it has joined that was not hit yet: before that there is nothing to lose. The process; a failure where
  // there is none.
  int hit(Launched& job, const Victim& who, int signal) {
    Life life = life_of(job, who);
    while (!life.ready || hit_.contains(life.pid)) {
      if (!job.read_some()) {
        ADD_FAILURE() << "the job ended before " << who.role << " " << who.rank << " could be hit";
        return -1;
      }
      life = life_of(job, who);
    }
    hit_.insert(life.pid);
    ::kill(life.pid, signal);
    return life.pid;
  }

  // Every process that was hit and did not go on has failed and was restarted.
  void expect_gone_well(Launched& job) {
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_TRUE(job.all_gone());
    const Json told = summary();
    std::set<int> failed;
    for (const Json& failure : told["failures"]) {
      failed.insert(failure["pid"].get<int>());
    }
    EXPECT_THAT(failed, ::testing::IsSupersetOf(hit_));
    std::size_t restarts = 0;
    for (const Json& restarted : told["restarts"]) {
      restarts += restarted["count"].get<std::size_t>();
    }
    EXPECT_GE(restarts, hit_.size());
  }

  // A slot of the ledger: pushed so often; the first parameter counts, the second has a digit to base 4 for each push.
  struct Row {
    int rank = 0;
    std::int64_t slot = 0, pushed = 0;
    double count = 0, digits = 0;
    bool no_push_twice() const {
      std::int64_t number = 0;
      for (auto left = static_cast<std::uint64_t>(digits); left > 0; left /= 4, ++number) {
        if (left % 4 > 1 || number >= pushed) {
          return false;
        }
      }
      return count <= static_cast<double>(pushed);
    }
    std::int64_t applied() const { return std::popcount(static_cast<std::uint64_t>(digits)); }  // to the second one
    std::string text() const {
      return concat("slot ", slot, " of worker ", rank, " was pushed ", pushed, " times: ", count, " and ", digits);
    }
  };
  std::vector<Row> ledger() const {
    std::vector<Row> rows;
    for (const char* name : {"ledger.0", "ledger.1"}) {
      std::ifstream file(path(name));
      for (Row row; file >> row.rank >> row.slot >> row.pushed >> row.count >> row.digits;) {
        rows.push_back(row);
      }
    }
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(2 * kSlots));
    return rows;
  }
  void expect_each_push_once() const {
    for (const Row& row : ledger()) {
      ASSERT_TRUE(row.no_push_twice() && row.count == static_cast<double>(row.pushed) && row.applied() == row.pushed)
          << row.text();
    }
  }
  void open_gates() const {
    gates_[0].let_through();
    gates_[1].let_through();
  }
  Json summary() const { return Json::parse(read_file(path("run/summary.json"))); }

  std::set<int> hit_;  // processes, those that went on again not among them
  RunFolder folder_{"", ::testing::TempDir()};
  Gate gates_[2] = {Gate(path("gate.0")), Gate(path("gate.1"))};
};

class ServerFaults : public Faults, public ::testing::WithParamInterface<std::tuple<std::string, int>> {};

// Servers die and stand still at random moments while the workers push, which keep what no snapshot has.
TEST_P(ServerFaults, NoPushIsLostOrDoubled) {
  const auto& [medium, seed] = GetParam();
  Random random(static_cast<std::uint64_t>(seed));
  const auto job = start({"-s", "2", "-w", "2", "--silence", "1", "--snapshot-interval", "0.1"},
                         {"push_ledger", std::to_string(kSlots), medium, "268435456", folder_.path().string()});
  for (int blow = 0; blow < 5; ++blow) {
    const Victim server{"server", static_cast<int>(random.below(2))};
    const int signal = random.below(4) == 0 ? SIGSTOP : SIGKILL;
    hit(*job, server, signal);
    job->read_for(std::chrono::milliseconds(random.below(300)));
  }
  open_gates();
  expect_gone_well(*job);
  EXPECT_THAT(job->err(), HasSubstr("medium " + (medium == "auto" ? std::string("shm") : medium)));
  EXPECT_THAT(job->err(), Not(ContainsRegex("worker [01]: (killed|exit)"))) << "a worker outlives its servers";
  expect_each_push_once();
  EXPECT_EQ(summary()["totals"]["lost"], 0);
  EXPECT_GT(summary()["totals"]["replayed"], 0) << "no blow met a push that no snapshot had";
  EXPECT_EQ(hit_.size(), 5u);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, int>>& parameter) {
  const auto medium = std::get<0>(parameter.param);
  return (medium == "auto" ? "shm" : medium) + std::to_string(std::get<1>(parameter.param));
}
INSTANTIATE_TEST_SUITE_P(Media, ServerFaults,
                         ::testing::Combine(::testing::Values("auto", "tcp"), ::testing::Range(0, 3)), name_of);

// Nobody reaches the end of the leases before the last blow: each life waits at its gate when it has done kBatchesALife batches,
// and five lives (two workers, three of whose lives end) of them are fewer than all.
class LeaseFaults : public Faults, public ::testing::WithParamInterface<std::tuple<std::string, int>> {
 protected:
  static constexpr int kSamples = 20000;
  static constexpr int kEpochs = 2;
  static constexpr int kBatchesALife = 1800;
  static_assert(5 * kBatchesALife < kSamples / 4 * kEpochs);

  void SetUp() override {
    if (!std::filesystem::exists(test_program("sample_worker"))) {
      GTEST_SKIP() << "built without LibTorch";
    }
  }
  std::unique_ptr<Launched> start_leases() {
    std::vector<std::string> program = {"tcp_sample_worker", std::to_string(kSamples), std::to_string(kEpochs)};
    if (medium() == "auto") {
      program.front() = "sample_worker";
      program.insert(program.end(), {"1", "any"});
    }
    program.insert(program.end(), {std::to_string(kBatchesALife), path("gate")});
    return start({"-s", "2", "-w", "2", "--silence", "1", "--snapshot-interval", "0.1"}, program);
  }
  static std::string medium() { return std::get<0>(GetParam()); }
  // Stops a process for a while that may be longer than the silence allowed.
  void stop_for_a_while(Launched& job, const Victim& who) {
    const int pid = hit(job, who, SIGSTOP);
    if (pid > 0) {
      job.read_for(std::chrono::milliseconds(random_.below(1500)));
      ::kill(pid, SIGCONT);
      hit_.erase(pid);
    }
  }
  // Every worker found each sample used exactly once an epoch.
  void expect_exact(Launched& job) {
    for (int life = 0; life < 10; ++life) {
      open_gates();
    }
    expect_gone_well(job);
    EXPECT_THAT(job.err(), HasSubstr("over " + (medium() == "auto" ? std::string("shm") : medium())));
    EXPECT_THAT(job.err(), HasSubstr("exact after"));
    EXPECT_THAT(job.err(), ::testing::Not(HasSubstr("INEXACT")));
  }

  Random random_{static_cast<std::uint64_t>(std::get<1>(GetParam()))};
};

// Workers die and stand still: their leases go to others, and each shard applies them only where they are missing.
TEST_P(LeaseFaults, EverySampleOnceWhenWorkersDie) {
  const auto job = start_leases();
  for (int blow = 0; blow < 3; ++blow) {
    const Victim worker{"worker", static_cast<int>(random_.below(2))};
    random_.below(3) == 0 ? stop_for_a_while(*job, worker) : static_cast<void>(hit(*job, worker, SIGKILL));
    job->read_for(std::chrono::milliseconds(random_.below(500)));
  }
  expect_exact(*job);
}

TEST_P(LeaseFaults, EverySampleOnceWhenServersDie) {
  const auto job = start_leases();
  for (int blow = 0; blow < 4; ++blow) {
    hit(*job, {"server", static_cast<int>(random_.below(2))}, random_.below(4) == 0 ? SIGSTOP : SIGKILL);
    job->read_for(std::chrono::milliseconds(random_.below(300)));
  }
  expect_exact(*job);
}

// A worker that dies takes with it what no snapshot of a server has that dies too.
TEST_P(LeaseFaults, EverySampleOnceWhenAWorkerAndAServerDieTogether) {
  const auto job = start_leases();
  for (int blow = 0; blow < 2; ++blow) {
    job->read_for(std::chrono::milliseconds(200 + random_.below(300)));
    hit(*job, {"worker", static_cast<int>(random_.below(2))}, SIGKILL);
    hit(*job, {"server", static_cast<int>(random_.below(2))}, SIGKILL);
  }
  expect_exact(*job);
  const Json told = summary();
  std::set<std::string> roles;
  for (const Json& restarted : told["restarts"]) {
    roles.insert(restarted["role"]);
  }
  EXPECT_EQ(roles, (std::set<std::string>{"server", "worker"}));
}

INSTANTIATE_TEST_SUITE_P(Shm, LeaseFaults, ::testing::Combine(::testing::Values("auto"), ::testing::Range(0, 3)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Tcp, LeaseFaults, ::testing::Combine(::testing::Values("tcp"), ::testing::Range(0, 1)),
                         name_of);

// What is missing afterwards is what the job says it lost. Only server 0 dies, whose shard begins with the whole first parameter:
// that one shows each push which its shard lacks, and no other shard lacks any.
class BeyondTheReplayBudget : public Faults, public ::testing::WithParamInterface<std::tuple<std::string, int>> {};

TEST_P(BeyondTheReplayBudget, TheLossIsTheOneReported) {
  const auto& [medium, servers] = GetParam();
  const auto job = start({"-s", std::to_string(servers), "-w", "2", "--snapshot-interval", "1000"},
                         {"push_ledger", std::to_string(kSlots), medium, "1", folder_.path().string()});
  for (int blow = 0; blow < 3; ++blow) {
    hit(*job, {"server", 0}, SIGKILL);
    job->read_for(std::chrono::milliseconds(100));
  }
  open_gates();
  expect_gone_well(*job);
  std::int64_t missing = 0;
  std::int64_t elsewhere = 0;  // applied to the second parameter, whose end another shard has, and not to the first
  for (const Row& row : ledger()) {
    const auto count = static_cast<std::int64_t>(row.count);
    ASSERT_TRUE(row.no_push_twice() && (row.applied() == count || row.applied() == row.pushed)) << row.text();
    missing += row.pushed - count;
    elsewhere += row.applied() - count;
  }
  EXPECT_GT(missing, 0);
  EXPECT_EQ(elsewhere > 0, servers > 1);
  EXPECT_EQ(summary()["totals"]["lost"], missing);
  EXPECT_THAT(job->err(), HasSubstr("could not be replayed after a restart (per shard)"));
}

INSTANTIATE_TEST_SUITE_P(Servers, BeyondTheReplayBudget,
                         ::testing::Combine(::testing::Values("auto", "tcp"), ::testing::Values(1, 2)), name_of);

// Far more processes than cores: nobody is taken for silent, and nothing is lost.
TEST(ManyWorkers, ThirtyTwoShareWhatTheMachineHas) {
  const Finish finish =
      launch({"run", "-s", "2", "-w", "32", "--max-restarts", "0", "--", test_program("trainer"), "20"});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(finish.out, HasSubstr("value 640"));
}

}  // namespace
}  // namespace downpour::launch
