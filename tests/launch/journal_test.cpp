#include "csrc/launch/journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>

#include "csrc/base/log.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string* logged = nullptr;  // where log lines go while a test runs

// A journal that writes to nobody, and a control group that the test makes up.
class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : journal_({}, output_, clock_, [this] { return memory_; }) {
    logged = &log_;
    set_log_sink([](LogLevel, std::string_view line) { logged->append(line).append("\n"); });
  }
  ~JournalTest() override { set_log_sink(nullptr); }

  // The hint of a worker's end.
  std::string fails(const ExitStatus& status, bool killed_by_us = false, const Failed& failure = {}) {
    Life life{.who = worker(0), .pid = 1, .killed_by_us = killed_by_us, .ended = Ended{.status = status}};
    Failed told = failure;
    told.status = status;
    journal_.failed(told, life);
    std::promise<void> done;
    output_.finish([&done] { done.set_value(); });
    done.get_future().wait();
    return journal_.close(1, output_).failures.back().hint;
  }
  void kernel_kills() { ++memory_->out_of_memory_kills; }

  std::string log_;
  Fd nowhere_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  SteadyClock clock_;
  Output output_{{.out = nowhere_.get(), .error = nowhere_.get()}};
  std::optional<MemoryGroup> memory_ = MemoryGroup{.limit_bytes = 2'000'000'000, .out_of_memory_kills = 7};
  Journal journal_;
};

TEST_F(JournalTest, AKillByTheKernelForMemoryIsKnownByTheControlGroup) {
  kernel_kills();
  EXPECT_EQ(fails({.signal = SIGKILL}),
            "out of memory: the kernel killed a process of this control group, whose limit is 2.0 GB");
  EXPECT_THAT(fails({.signal = SIGKILL}), StartsWith("nobody in this job sent")) << "that kill is explained already";
  kernel_kills();
  EXPECT_THAT(fails({.signal = SIGKILL}), StartsWith("out of memory"));
}

TEST_F(JournalTest, AGroupWithoutALimitIsNamedWithoutOne) {
  memory_->limit_bytes.reset();
  kernel_kills();
  EXPECT_EQ(fails({.signal = SIGKILL}), "out of memory: the kernel killed a process of this control group");
}

TEST_F(JournalTest, WithoutAKillInTheGroupItMayHaveBeenAnybody) {
  EXPECT_THAT(fails({.signal = SIGKILL}), StartsWith("nobody in this job sent that SIGKILL")) << "7 were there before";
  memory_.reset();
  EXPECT_THAT(fails({.signal = SIGKILL}), StartsWith("nobody in this job sent that SIGKILL"));
}

TEST_F(JournalTest, OtherEndsAreNotTheKernels) {
  kernel_kills();
  EXPECT_EQ(fails({.signal = SIGSEGV}), "");
  EXPECT_EQ(fails({.signal = SIGKILL}, /*killed_by_us=*/true), "");
  EXPECT_EQ(fails({.code = 137}), "");
}

TEST_F(JournalTest, WhyNobodyIsStartedAgainIsTrue) {
  Failed failure{.who = worker(0), .consequence = Failed::Consequence::kEndsJob, .allowed = 1000};
  fails({.code = 1}, false, failure);
  EXPECT_THAT(log_, HasSubstr("no restart left (1000 allowed, --max-restarts), ending the job"));
  log_.clear();
  failure.no_restart = Failed::NoRestart::kAllFinished;
  fails({.code = 1}, false, failure);
  EXPECT_THAT(log_, HasSubstr("every worker had finished, so nobody is started again, ending the job"));
  EXPECT_THAT(log_, Not(HasSubstr("--max-restarts")));
  log_.clear();
  failure.no_restart = Failed::NoRestart::kHopeless;
  failure.hopeless = "another model";
  EXPECT_EQ(fails({.code = 1}, false, failure), "another model");
  EXPECT_THAT(log_, HasSubstr("exit code 1 (another model); a restart would not help, ending the job"));
}

}  // namespace
}  // namespace downpour::launch
