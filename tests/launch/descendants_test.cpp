#include "csrc/launch/descendants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "csrc/launch/child.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

// The functions are about the calling process: each test runs in a process of its own, which reports by its exit code.
int in_own_process(const std::function<bool()>& test) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_subreaper();
    ::_exit(test() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

Child stray() {
  ChildSpec spec;
  spec.program = test_program("stray");
  spec.arguments = {"stray", "stays"};
  Piped piped = spawn_piped(std::move(spec));
  EXPECT_NE(read_once(piped.output), "");  // it says when its stray lives
  return std::move(piped.child);
}

TEST(Descendants, StraysAreFoundAndEnded) {
  EXPECT_EQ(in_own_process([] {
              const Child child = stray();
              const auto before = descendants();
              return before.size() == 2 && end_descendants(soon()).empty() && descendants().empty();
            }),
            0);
}

TEST(Descendants, AProcessWithoutAnyHasNone) {
  EXPECT_EQ(in_own_process([] { return descendants().empty() && end_descendants(soon()).empty(); }), 0);
}

TEST(Descendants, OnlyAdoptedOnesAreReaped) {
  EXPECT_EQ(in_own_process([] {
              ChildSpec spec;
              spec.program = "/bin/true";
              spec.arguments = {"true"};
              Child ours = Child::spawn(spec);
              Ended ended;
              reap_adopted([&](pid_t pid) { return pid != ours.pid(); });
              ended = wait_for(ours);
              return ended.status.success();
            }),
            0);
}

TEST(Descendants, ASessionIsKilledWithoutItsLeader) {
  EXPECT_EQ(in_own_process([] {
              ChildSpec spec;
              spec.program = "/bin/sh";
              spec.arguments = {"sh", "-c", "sleep 1000 & sleep 1000 & echo started; exec sleep 1000"};
              spec.variables = {"PATH=/bin:/usr/bin"};
              Piped piped = spawn_piped(std::move(spec));
              Child& leader = piped.child;
              if (read_once(piped.output).empty()) {
                return false;
              }
              kill_session(leader.pid());
              // The two sleepers become zombies of the leader: only it is alive.
              while (descendants().size() > 1) {
                ::sched_yield();
              }
              return descendants() == std::vector<pid_t>{leader.pid()} && !leader.reap() &&
                     end_descendants(soon()).empty();
            }),
            0);
}

}  // namespace
}  // namespace downpour::launch
