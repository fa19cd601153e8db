#include "csrc/launch/child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "csrc/base/error.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

ChildSpec shell(const std::string& script) {
  ChildSpec spec;
  spec.program = "/bin/sh";
  spec.arguments = {"sh", "-c", script};
  spec.variables = {"PATH=/usr/bin:/bin"};
  return spec;
}

std::string output_of(ChildSpec spec) {
  Piped piped = spawn_piped(std::move(spec));
  std::string text;
  for (std::string more; !(more = read_once(piped.output)).empty();) {
    text += more;
  }
  EXPECT_TRUE(wait_for(piped.child).status.success());
  return text;
}

TEST(Child, TellsHowItEnded) {
  Child with_code = Child::spawn(shell("exit 3"));
  EXPECT_EQ(wait_for(with_code).status, (ExitStatus{.code = 3}));
  Child with_signal = Child::spawn(shell("kill -USR1 $$"));
  EXPECT_EQ(wait_for(with_signal).status.signal, SIGUSR1);
}

TEST(Child, TellsItsPeakMemory) {
  Child child = Child::spawn(shell(":"));
  EXPECT_GT(wait_for(child).peak_memory_bytes, 100'000);
}

TEST(Child, RunsWhileItRuns) {
  Child child = Child::spawn(shell("exec sleep 1000"));
  EXPECT_EQ(child.reap(), std::nullopt);
  child.signal(SIGKILL);
  EXPECT_EQ(wait_for(child).status.signal, SIGKILL);
}

TEST(Child, LeadsItsOwnSessionAndGroup) {
  const std::string text =
      output_of(shell("ps -o pid=,pgid=,sid= -p $$ 2>/dev/null || cut -d' ' -f1,5,6 /proc/$$/stat"));
  int pid = 0;
  int group = 0;
  int session = 0;
  ASSERT_EQ(std::sscanf(text.c_str(), "%d %d %d", &pid, &group, &session), 3) << text;
  EXPECT_EQ(group, pid);
  EXPECT_EQ(session, pid);
  EXPECT_NE(session, ::getsid(0));
}

TEST(Child, InheritsOnlyWhatIsHandedOver) {
  const Fd handed(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ChildSpec spec = shell("for fd in " + std::to_string(handed.get()) + " " + std::to_string(kept.get()) +
                         "; do test -e /proc/self/fd/$fd && echo $fd; done; true");
  spec.handed_over = {handed.get()};
  EXPECT_EQ(output_of(spec), std::to_string(handed.get()) + "\n");
  EXPECT_NE(::fcntl(handed.get(), F_GETFD) & FD_CLOEXEC, 0) << "ours stays close-on-exec";
}

TEST(Child, StartsWithNoSignalBlockedOrIgnored) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const auto old = std::signal(SIGPIPE, SIG_IGN);
  const std::string text = output_of(shell("grep -E 'SigBlk|SigIgn' /proc/self/status"));
  std::signal(SIGPIPE, old);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(text, HasSubstr("SigBlk:\t0000000000000000"));
  unsigned long long ignored = 0;
  ASSERT_EQ(std::sscanf(text.c_str() + text.find("SigIgn:"), "SigIgn:\t%llx", &ignored), 1);
  EXPECT_EQ(ignored & (1ull << (SIGPIPE - 1)), 0u);
}

TEST(Child, WhatIsLeftOfItsGroupAndSessionDiesWithIt) {
  // The second one has left the group, not the session (an interactive shell gives each job a group).
  Piped piped = spawn_piped(shell("sleep 1000 & set -m; sleep 1000 & exit 0"));
  EXPECT_TRUE(wait_for(piped.child).status.success());
  // The sleepers hold the pipe: its end shows that they are dead.
  pollfd waiting{.fd = piped.output.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&waiting, 1, 60'000), 1);
  EXPECT_EQ(read_once(piped.output), "");
}

TEST(Child, AProgramThatCannotStartIsAnErrorThatSaysWhy) {
  for (const auto& [program, reason] : {std::pair{"/no/such/program", "no such file"},
                                        {"/etc/passwd", "permission denied"},
                                        {"/", "ermission denied"}}) {
    ChildSpec spec;
    spec.program = program;
    spec.arguments = {program};
    try {
      Child::spawn(spec);
      ADD_FAILURE() << program << " started";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
      EXPECT_THAT(error.what(), HasSubstr(program));
    }
  }
}

}  // namespace
}  // namespace downpour::launch
