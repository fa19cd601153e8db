// L4, L5: whatever ends, and however, nobody is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

const std::string kStray = test_program("stray");
// Two seconds are promised; the rest is for sanitizers on a busy machine.
constexpr auto kSoon = std::chrono::seconds(10);

class Orphans : public ::testing::Test {
 protected:
  void expect_soon_gone(const Launched& job) {
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_TRUE(job.all_gone());
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kSoon);
  }
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

TEST_F(Orphans, L4_AFloodOfShortLivedOrphansIsReaped) {
  Launched job(
      {"run", "-q", "--", "sh", "-c",
       "i=0; while [ $i -lt 200 ]; do (true &); i=$((i+1)); done; ps -e -o stat= -o ppid= | grep -c '^Z' ; true"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.alive().empty());
}

}  // namespace
}  // namespace downpour::launch
