// A worker that strace -p or gdb -p looks at: the launcher cannot reap it before the tracer has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

pid_t number_after(const std::string& word, const std::string& text) {
  return std::atoi(text.c_str() + text.find(word) + word.size());
}

TEST(Traced, AWorkersEndIsHeardOfWhenItsTracerLetsItGo) {
  Launched job({"run", "--max-restarts", "0", "--", "sh", "-c", "echo pid $$ ; exec sleep 1000"});
  job.wait_for("pid");
  job.wait_for("\n");
  const pid_t worker = number_after("pid ", job.out());
  ASSERT_GT(worker, 1) << job.out();
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "this process may trace nobody";
  }
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(job.read_for(std::chrono::milliseconds(300))) << job.err();
  EXPECT_EQ(::waitpid(worker, nullptr, __WALL), worker);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.err(), HasSubstr("worker 0: killed by SIGKILL")) << job.err();
  EXPECT_TRUE(job.all_gone());
}

}  // namespace
}  // namespace downpour::launch
