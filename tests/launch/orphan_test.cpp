// L4, L5: whatever ends, and however, nobody is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

const std::string kStray = test_program("stray");
// Two seconds are promised; sanitizers take their time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto kSoon = std::chrono::seconds(10);
#else
constexpr auto kSoon = std::chrono::seconds(2);
#endif
constexpr auto kPatience = std::chrono::seconds(60);

// Children of the launcher's second process that have ended and were not reaped.
int zombies(int parent) {
  const std::string path = "/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children";
  std::istringstream children(read_file(path));
  int count = 0;
  for (int pid = 0; children >> pid;) {
    count += read_file("/proc/" + std::to_string(pid) + "/stat").find(") Z ") != std::string::npos ? 1 : 0;
  }
  return count;
}

class Orphans : public ::testing::Test {
 protected:
  void expect_soon_gone(const Launched& job) {
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_TRUE(job.all_gone());
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kSoon);
  }

  RunFolder folder_{"", ::testing::TempDir()};
  std::string fifo_ = (folder_.path() / "fifo").string();
};

TEST_F(Orphans, L4_NoneAfterSuccess) {
  Launched job({"run", "-w", "2", "--", kStray});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.alive().empty()) << "all are gone before the launcher is";
}

TEST_F(Orphans, L4_NoneAfterAFailure) {
  Launched job({"run", "-q", "-w", "2", "--max-restarts", "0", "--grace", "0.2", "--", "sh", "-c",
                "if [ $RANK = 0 ]; then exec " + kStray + " stays; else " + kStray + "; exit 6; fi"});
  EXPECT_EQ(job.wait(), 6);
  EXPECT_TRUE(job.alive().empty());
}

TEST_F(Orphans, L4_NoneAfterCtrlC) {
  Launched job({"run", "-s", "1", "-w", "2", "--grace", "0.2", "--", kStray, "stays"});
  job.wait_for("[worker 0] the stray lives");
  job.wait_for("[worker 1] the stray lives");
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.alive().empty());
}

TEST_F(Orphans, L4_NoneAfterARestart) {
  Launched job({"run", "-q", "-s", "1", "--", "sh", "-c", kStray + "; test $DOWNPOUR_RESTARTS = 2"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.alive().empty());
}

TEST_F(Orphans, L5_KillingTheLauncherEndsEverything) {
  Launched job({"run", "-s", "2", "-w", "2", "--", kStray, "stays"});
  job.wait_for("[worker 0] the stray lives");
  job.wait_for("[worker 1] the stray lives");
  job.signal(SIGKILL);
  expect_soon_gone(job);
}

TEST_F(Orphans, L5_KillingItsWorkingProcessEndsEverything) {
  Launched job({"run", "-s", "2", "-w", "2", "--", kStray, "stays"});
  job.wait_for("[worker 0] the stray lives");
  job.wait_for("[worker 1] the stray lives");
  ASSERT_GT(job.working_process(), 0);
  ::kill(job.working_process(), SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_THAT(job.err(), HasSubstr("the launcher was killed by SIGKILL"));
  EXPECT_TRUE(job.alive().empty());
}

TEST_F(Orphans, L5_KillingTheWholeGroupEndsServersAndWorkers) {
  // The kernel does it (parent-death signal): nobody of ours is left to help.
  Launched job({"run", "-s", "2", "-w", "2", "--", "sh", "-c",
                "trap '' TERM INT HUP; echo ready; while true; do read x; done < /dev/zero"});
  job.wait_for("[worker 0] ready");
  job.wait_for("[worker 1] ready");
  job.signal_group(SIGKILL);
  expect_soon_gone(job);
}

TEST_F(Orphans, L5_AtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    Launched job({"run", "-q", "-s", "1", "-w", "2", "--", "sh", "-c", "exec sleep 1000"});
    if (round % 2 == 1) {
      job.signal(SIGSTOP);  // so that the other half is killed at a later stage
      job.signal(SIGCONT);
    }
    job.signal(SIGKILL);
    expect_soon_gone(job);
  }
}

// The program stays until the test has looked, so that nobody but the launcher can have reaped them.
TEST_F(Orphans, L4_AFloodOfShortLivedOrphansIsReaped) {
  Gate gate(fifo_);
  Launched job({"run", "-q", "--", "sh", "-c",
                "i=0; while [ $i -lt 200 ]; do (true &); i=$((i+1)); done; echo flooded; read x < " + fifo_});
  job.wait_for("flooded");
  const int launcher = job.working_process();
  ASSERT_GT(launcher, 0);
  const auto begun = std::chrono::steady_clock::now();
  while (zombies(launcher) > 0 && std::chrono::steady_clock::now() - begun < kPatience) {
    job.read_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(zombies(launcher), 0);
  gate.let_through();
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.alive().empty());
}

}  // namespace
}  // namespace downpour::launch
