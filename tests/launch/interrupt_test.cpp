// L6: signals for the launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kBelowTheDefaultGrace = std::chrono::seconds(8);  // that is 10 s

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

// Its default action would end the shell, and what does not come to an optimizer.
TEST(Interrupt, SIGUSR2EndsNobodyWhoHasNoHandlerForIt) {
  Launched job({"run", "--max-restarts", "0", "--", "sh", "-c",
                "trap 'echo got USR1' USR1; echo ready; while true; do sleep 0.05; done"});
  job.wait_for("ready");
  job.signal(SIGUSR2);
  job.signal(SIGUSR1);
  job.wait_for("got USR1");
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_THAT(job.err(), Not(HasSubstr("SIGUSR2")));
}

TEST(Interrupt, SIGUSR2ReachesAWorkerInsideAShell) {
  const std::string inner = "trap 'echo got USR2' USR2; echo ready; while true; do sleep 0.05; done";
  Launched job({"run", "--max-restarts", "0", "--", "sh", "-c", "sh -c \"$0\"; exit 9", inner});
  job.wait_for("ready");
  job.signal(SIGUSR2);
  job.wait_for("got USR2");
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
}

// -1: there is none.
pid_t server_of(const Launched& job) {
  for (const pid_t pid : job.alive()) {
    if (read_file("/proc/" + std::to_string(pid) + "/cmdline").starts_with(std::string("downpour\0server", 15))) {
      return pid;
    }
  }
  return -1;
}

TEST(Interrupt, SIGUSR2ForAServerMakesItPrintItsStacks) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string fifo = (folder.path() / "fifo").string();
  const Gate gate(fifo + ".0");
  Launched job({"run", "-s", "1", "--", test_program("trainer"), "20", fifo});
  job.wait_for("half-way");
  const pid_t server = server_of(job);
  ASSERT_GT(server, 1) << "to signal -1 would be to signal everybody";
  ::kill(server, SIGUSR2);
  job.wait_for("[server 0] downpour: stack of thread");
  gate.let_through();
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST(Interrupt, ADeafWorkerIsKilledAfterTheGraceTime) {
  Launched job({"run", "-s", "1", "-w", "2", "--grace", "0.3", "--", "sh", "-c", kDeaf});
  job.wait_for("[worker 0] ready");
  job.wait_for("[worker 1] ready");
  const auto begun = std::chrono::steady_clock::now();
  job.signal_group(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kBelowTheDefaultGrace);
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
  const auto begun = std::chrono::steady_clock::now();
  job.signal_group(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kBelowTheDefaultGrace);
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
