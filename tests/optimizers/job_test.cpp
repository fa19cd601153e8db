#include "tests/optimizers/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

// Real processes: the launcher, servers and workers that check themselves (programs/).
namespace downpour {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> job(int servers, int workers, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--servers", std::to_string(servers), "--workers", std::to_string(workers), "--quiet"});
  return more;
}

int times(const std::string& text, const std::string& where) {
  int count = 0;
  for (auto at = where.find(text); at != std::string::npos; at = where.find(text, at + 1)) {
    ++count;
  }
  return count;
}

std::set<std::string> distinct(const std::vector<std::string>& values) { return {values.begin(), values.end()}; }

// ---- one worker ---------------------------------------------------------------------------------------------------------

struct Identity {
  std::string name;
  std::string transport;
  int servers;
};
std::ostream& operator<<(std::ostream& out, const Identity& identity) { return out << identity.name; }

class OneWorker : public ::testing::TestWithParam<Identity> {};

TEST_P(OneWorker, EqualsTorchOrAWorldOfOne) {
  testing::JobRun run(job(GetParam().servers, 1), "train_worker", {GetParam().name, GetParam().transport});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("equal over " + GetParam().transport));
}

std::vector<Identity> identities() {
  std::vector<Identity> all;
  for (const char* transport : {"shm", "tcp"}) {
    for (int servers = 1; servers <= 3; ++servers) {
      all.push_back({"all", transport, servers});
      all.push_back({"zoo", transport, servers});
    }
    for (const char* name : {"plain", "accumulation", "clipping", "step_lr", "groups"}) {
      all.push_back({name, transport, 2});
    }
  }
  for (const char* name :
       {"adam", "adamw", "adagrad", "overlap", "overlap_summed", "n_push", "n_fetch", "n_push_n_fetch", "max_grad_norm",
        "max_grad_norm_overlap", "prefetch", "nan", "fork", "fork_overlap", "destroy", "save_and_load"}) {
    all.push_back({name, "shm", 2});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, OneWorker, ::testing::ValuesIn(identities()), [](const auto& tested) {
  return tested.param.name + "_" + tested.param.transport + "_" + std::to_string(tested.param.servers);
});

// The summary of a job counts what the loop reported, with servers and without.
TEST(Reports, ReachTheSummary) {
  for (const int servers : {0, 2}) {
    testing::JobRun run({"--servers", std::to_string(servers)}, "train_worker", {"report"});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.output(), ::testing::ContainsRegex("samples +64[ \n]")) << servers << " servers";
  }
}

TEST(Reports, AreShownOnTheTerminal) {
  const std::string fifo = ::testing::TempDir() + "downpour-report-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  testing::JobRun run({"--servers", "1"}, "train_worker", {"report", fifo}, testing::Screen::kTerminal);
  EXPECT_TRUE(run.wait_for("worker 0  step         8")) << run.output();
  std::ofstream(fifo) << "go on\n";
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.output(), ::testing::ContainsRegex("worker 0  step +8 +[0-9.,]+ samples/s  loss 0.7500"));
  std::filesystem::remove(fifo);
}

TEST(Stacks, OfAWorkerAreWrittenAtASignalForTheLauncher) {
  const std::string fifo = ::testing::TempDir() + "downpour-stacks-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  testing::JobRun run(job(1, 1), "train_worker", {"print_stacks", fifo});
  ASSERT_TRUE(run.wait_for("waits")) << run.output();
  run.signal(SIGUSR2);
  EXPECT_TRUE(run.wait_for("downpour: stack of thread ")) << run.output();
  std::ofstream(fifo) << "go on\n";
  EXPECT_EQ(run.wait(), 0) << run.output();
  std::filesystem::remove(fifo);
  EXPECT_THAT(run.output(), HasSubstr("downpour: stack of thread "));
  EXPECT_THAT(run.output(), Not(HasSubstr("does not answer")));
}

// ---- several workers ------------------------------------------------------------------------------------------------------

class Workers : public ::testing::TestWithParam<std::string> {};

TEST_P(Workers, ConvergeToOneModel) {
  testing::JobRun run(job(2, 3), "train_worker", {GetParam()});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(distinct(run.after("final ")), SizeIs(1)) << run.output();
}

INSTANTIATE_TEST_SUITE_P(All, Workers, ::testing::Values("converge", "converge_overlap", "converge_bounded"),
                         [](const auto& tested) { return tested.param; });

TEST(WarmStart, Worker0MakesItsStepsAlone) {
  testing::JobRun run(job(2, 2), "train_worker", {"warm_start"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("equal over "), SizeIs(2)) << run.output();
}

TEST(WarmUp, AllWorkersHaveTheSameValuesAfterEachStep) {
  testing::JobRun run(job(2, 3), "train_worker", {"warm_up"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("initial "), SizeIs(3));
  EXPECT_THAT(distinct(run.after("initial ")), SizeIs(1)) << "rank 0's values are everybody's";
  std::map<std::string, std::set<std::string>> by_step;
  for (const std::string& line : run.after("step ")) {
    by_step[line.substr(0, line.find(' '))].insert(line.substr(line.find(' ')));
  }
  EXPECT_THAT(by_step, SizeIs(6));
  std::set<std::string> all;
  for (const auto& [step, sums] : by_step) {
    EXPECT_THAT(sums, SizeIs(1)) << "step " << step;
    all.insert(sums.begin(), sums.end());
  }
  EXPECT_THAT(all, SizeIs(6)) << "each step moved them";
}

TEST(WarmUp, AWorkerThatComesBackTakesPartInTheRestOfIt) {
  testing::JobRun run(job(2, 2), "train_worker", {"warm_up_with_a_death"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("equal over "), SizeIs(2)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("SIGKILL"));
}

TEST(WarmUp, AWorkerThatWasStoppedAfterItsPushTakesPartInTheRestOfIt) {
  testing::JobRun run(job(2, 2, {"--silence", "1"}), "train_worker", {"warm_up_with_a_stop"});
  ASSERT_TRUE(run.wait_for("stopped ")) << run.output();
  ASSERT_TRUE(run.wait_for("fenced")) << run.output();
  ::kill(static_cast<pid_t>(std::stol(run.after("stopped ").at(0))), SIGCONT);
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("equal over "), SizeIs(2)) << run.output();
  EXPECT_THAT(run.output(), ::testing::Not(HasSubstr("; restart "))) << run.output();
}

TEST(Overlap, GradientsLeaveWhileBackwardRuns) {
  testing::JobRun run(job(1, 1), "train_worker", {"leave_early"});
  EXPECT_EQ(run.wait(), 0) << run.output();
}

TEST(Deadline, AStepThatEndsWithoutItsServerCountsOnce) {
  testing::JobRun run(job(1, 1), "train_worker", {"outwait"});
  EXPECT_EQ(run.wait(), 0) << run.output();
}

TEST(SharedBuffers, EndAsOneSetOnAllWorkers) {
  testing::JobRun single(job(2, 1), "train_worker", {"buffers"});
  EXPECT_EQ(single.wait(), 0) << single.output();
  testing::JobRun run(job(1, 2), "train_worker", {"buffers"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("buffers "), SizeIs(2));
  EXPECT_THAT(distinct(run.after("buffers ")), SizeIs(1)) << run.output();
}

TEST(Workers, NoneRunsFurtherAheadThanMaxLead) {
  testing::JobRun run(job(1, 2), "train_worker", {"lead"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("stood at "), ::testing::UnorderedElementsAre("-1", "3")) << run.output();
}

TEST(Mistakes, DifferentModelsNameTheFirstDifferingParameterAndEndTheJobAtOnce) {
  testing::JobRun run(job(1, 2), "train_worker", {"differ"});
  EXPECT_NE(run.wait(), 0);
  EXPECT_THAT(run.output(), HasSubstr("'1.weight' float32 [2, 8]"));
  EXPECT_THAT(run.output(), HasSubstr("'1.weight' float32 [3, 8]"));
  EXPECT_THAT(run.output(), HasSubstr("a restart would not help, ending the job"));
}

// Whether it is caught or not.
TEST(Mistakes, SeveralWorkersWithoutServersEndTheJobAtOnce) {
  for (const auto& [program, exit_code] : {std::pair("need_servers", 128 + SIGABRT), {"need_servers_and_fail", 3}}) {
    testing::JobRun run(job(0, 2), "train_worker", {program});
    EXPECT_EQ(run.wait(), exit_code) << run.output();
    EXPECT_THAT(run.output(), HasSubstr("a restart would not help, ending the job"));
    EXPECT_THAT(run.output(), Not(HasSubstr("; restart ")));
    const std::string summary = run.output().substr(std::min(run.output().find("failed first: "), run.output().size()));
    EXPECT_EQ(times("downpour run --servers 1 --workers 2", summary), 1) << summary;
  }
}

TEST(Mistakes, AProgramThatGoesOnWithoutDownpourSucceeds) {
  testing::JobRun run(job(0, 2), "train_worker", {"need_servers_and_go_on"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("caught: worker "), SizeIs(2));
}

TEST(Mistakes, WithoutALauncherToo) {
  testing::JobRun run(job(0, 1), "train_worker", {"need_servers_without_a_launcher"});
  EXPECT_EQ(run.wait(), 3) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("caught: DownpourSGD: 2 workers share no parameters without a server"));
}

// ---- samples --------------------------------------------------------------------------------------------------------------

TEST(SampleLedger, EverySampleCountsOnceAnEpoch) {
  for (const char* n_push : {"1", "3"}) {
    testing::JobRun run(job(2, 3), "sample_worker", {"203", "2", n_push});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.after("exact after"), SizeIs(3));
  }
}

TEST(SampleLedger, HoldsUnderOverlapAndABoundOnTheLead) {
  for (const char* trouble : {"overlap", "lead"}) {
    testing::JobRun run(job(2, 2), "sample_worker", {"203", "2", "1", trouble});
    EXPECT_EQ(run.wait(), 0) << run.output();
  }
}

TEST(SampleLedger, HoldsWhenAWorkerIsKilled) {
  for (const char* n_push : {"1", "2"}) {
    testing::JobRun run(job(2, 2), "sample_worker", {"400", "2", n_push, "kill"});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.after("exact after"), SizeIs(2)) << run.output();
    EXPECT_THAT(run.after("about to die"), SizeIs(1));
  }
}

// In the middle of a backward, a push, a pull, or a word with the coordinator.
TEST(SampleLedger, HoldsWhereverAWorkerDies) {
  for (const char* time_us : {"200", "1700", "3100", "5300", "8900", "14000"}) {
    testing::JobRun run(job(2, 2), "sample_worker", {"2000", "2", "1", "die", time_us});
    EXPECT_EQ(run.wait(), 0) << time_us << run.output();
    EXPECT_THAT(run.after("exact after"), SizeIs(2)) << run.output();
    EXPECT_THAT(run.output(), HasSubstr("SIGALRM"));
  }
}

TEST(SampleLedger, HoldsWhenAWorkerIsStoppedAndContinued) {
  testing::JobRun run(job(2, 2, {"--silence", "1"}), "sample_worker", {"400", "2", "1", "stop"});
  ASSERT_TRUE(run.wait_for("stopped ")) << run.output();
  ASSERT_TRUE(run.wait_for("fenced")) << run.output();
  ::kill(static_cast<pid_t>(std::stol(run.after("stopped ").at(0))), SIGCONT);
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("exact after"), SizeIs(2)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("joins again"));
  EXPECT_THAT(run.output(), Not(HasSubstr("; restart "))) << "in its own process, not in another life";
}

TEST(SampleLedger, HoldsWhenAServerIsKilled) {
  testing::JobRun run(job(2, 2), "sample_worker", {"20000", "2", "1"});
  ASSERT_TRUE(run.wait_for("under way")) << run.output();
  const pid_t server = run.a_server();
  ASSERT_GT(server, 0);
  ::kill(server, SIGKILL);
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("exact after"), SizeIs(2)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("lost shard"));
}

TEST(SampleLedger, DifferentDataSetsAreRefused) {
  testing::JobRun run(job(1, 2), "sample_worker", {"40", "1", "1", "differ"});
  EXPECT_NE(run.wait(), 0);
  EXPECT_THAT(run.output(),
              ::testing::AnyOf(HasSubstr("samples is 41 here, 40 there"), HasSubstr("samples is 40 here, 41 there")));
}

}  // namespace
}  // namespace downpour
