// L6: signals for the launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A worker that reacts to signals although its shell waits for a child.
const char* const kWaiter =
    "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 5' TERM; trap 'echo got HUP; exit 0' HUP;"
    "trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; sleep 1000 & echo ready;"
    "while true; do wait; done";
const char* const kDeaf = "trap '' INT TERM HUP QUIT; echo ready; while true; do sleep 1000; done";

TEST(Interrupt, CtrlCEndsCleanlyWith130) {
  Launched job({"run", "-s", "1", "-w", "2", "--", "sh", "-c", kWaiter});
  job.wait_for("[worker 0] ready");
  job.wait_for("[worker 1] ready");
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.out(), HasSubstr("[worker 0] got INT"));
  EXPECT_THAT(job.out(), HasSubstr("[worker 1] got INT"));
  EXPECT_THAT(job.err(), HasSubstr("ended by SIGINT"));
  EXPECT_THAT(job.err(), Not(HasSubstr("failed")));
  EXPECT_TRUE(job.all_gone());
}

TEST(Interrupt, ASignalForTheLauncherAloneCountsOnceToo) {
  Launched job({"run", "--", "sh", "-c", kWaiter});
  job.wait_for("ready");
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_THAT(job.out(), HasSubstr("got INT"));
}

TEST(Interrupt, SIGTERMAndSIGHUPAreForwarded) {
  for (const auto& [number, text] : {std::pair{SIGTERM, "got TERM"}, {SIGHUP, "got HUP"}}) {
    Launched job({"run", "--", "sh", "-c", kWaiter});
    job.wait_for("ready");
    job.signal(number);
    EXPECT_EQ(job.wait(), 128 + number) << "whatever the program says";
    EXPECT_THAT(job.out(), HasSubstr(text));
  }
}

TEST(Interrupt, SIGUSR1AndSIGUSR2ReachTheWorkersAndEndNothing) {
  Launched job({"run", "-s", "1", "--", "sh", "-c", kWaiter});
  job.wait_for("ready");
  job.signal(SIGUSR1);
  job.wait_for("got USR1");
  job.signal_group(SIGUSR2);
  job.wait_for("got USR2");
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.err(), Not(HasSubstr("server 0"))) << "servers must not get them: SIGUSR1 would end one";
}

TEST(Interrupt, ADeafWorkerIsKilledAfterTheGraceTime) {
  Launched job({"run", "-s", "1", "-w", "2", "--grace", "0.3", "--", "sh", "-c", kDeaf});
  job.wait_for("[worker 0] ready");
  job.wait_for("[worker 1] ready");
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.all_gone());
}

TEST(Interrupt, TheSecondCtrlCKillsAtOnce) {
  Launched job({"run", "-w", "2", "--grace", "100000", "--", "sh", "-c", kDeaf});
  job.wait_for("[worker 0] ready");
  job.wait_for("[worker 1] ready");
  job.signal_group(SIGINT);
  job.wait_for("once more kills at once");
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.all_gone());
}

TEST(Interrupt, SIGQUITKillsAtOnce) {
  Launched job({"run", "--grace", "100000", "--", "sh", "-c", kDeaf});
  job.wait_for("ready");
  job.signal_group(SIGQUIT);
  EXPECT_EQ(job.wait(), 131);
  EXPECT_TRUE(job.all_gone());
}

TEST(Interrupt, CtrlZSuspendsNobody) {
  Launched job({"run", "--", "sh", "-c", kWaiter});
  job.wait_for("ready");
  job.signal_group(SIGTSTP);
  job.signal(SIGUSR1);
  job.wait_for("got USR1");
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

TEST(Interrupt, AStoppedWorkerIsNoObstacle) {
  Launched job({"run", "--grace", "0.2", "--", "sh", "-c", "echo ready; kill -STOP $$; echo went on"});
  job.wait_for("ready");
  job.signal_group(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_TRUE(job.all_gone());
}

TEST(Interrupt, DuringTheStartIsInTimeToo) {
  for (int round = 0; round < 20; ++round) {
    Launched job({"run", "-q", "-s", "2", "-w", "2", "--", "sh", "-c", "exec sleep 1000"});
    job.signal_group(SIGTERM);
    // Before the launcher listens to signals the kernel ends it, later it ends itself: 143 as a shell sees it, both times.
    EXPECT_EQ(job.wait(), 143);
    EXPECT_TRUE(job.all_gone());
  }
}

TEST(Interrupt, WhileARestartIsPendingNothingIsStartedAnyMore) {
  Launched job({"run", "-s", "1", "--max-restarts", "100", "--", "sh", "-c", "echo life $DOWNPOUR_RESTARTS; exit 1"});
  job.wait_for("life 5");  // pauses are long by now
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(job.all_gone());
}

}  // namespace
}  // namespace downpour::launch
