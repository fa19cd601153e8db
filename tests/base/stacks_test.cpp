#include "csrc/base/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

namespace downpour {
namespace {

using ::testing::HasSubstr;

// What a child writes to standard error; it must end with exit status 0.
template <typename Body>
std::string output_of_child(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    body();
    std::_Exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return text;
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(Stacks, OfAllThreadsAreWrittenAndTheProcessGoesOn) {
  const std::string text = output_of_child([] {
    print_stacks_on_signal();
    print_stacks_on_signal();
    int ends[2];
    if (::pipe(ends) != 0) {
      std::_Exit(1);
    }
    std::thread waiting([&] {
      char byte = 0;
      [[maybe_unused]] const ssize_t count = ::read(ends[0], &byte, 1);
    });
    ::raise(SIGUSR2);
    ::raise(SIGUSR2);
    [[maybe_unused]] const ssize_t count = ::write(ends[1], "", 1);
    waiting.join();  // its read went on after the signals
  });
  EXPECT_EQ(occurrences(text, "downpour: stack of thread "), 4) << text;
  EXPECT_GE(occurrences(text, "libc.so"), 4) << text;
  EXPECT_THAT(text, HasSubstr("(base_test) of process "));
}

TEST(Stacks, AThreadThatBlocksTheSignalIsPassedOver) {
  const std::string text = output_of_child([] {
    print_stacks_on_signal();
    int ends[2], ready[2];
    if (::pipe(ends) != 0 || ::pipe(ready) != 0) {
      std::_Exit(1);
    }
    char byte = 0;
    std::thread deaf([&] {
      sigset_t set;
      ::sigfillset(&set);
      ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
      [[maybe_unused]] ssize_t count = ::write(ready[1], "", 1);
      count = ::read(ends[0], &byte, 1);
    });
    [[maybe_unused]] ssize_t count = ::read(ready[0], &byte, 1);
    ::raise(SIGUSR2);
    count = ::write(ends[1], "", 1);
    deaf.join();
  });
  EXPECT_EQ(occurrences(text, "downpour: stack of thread "), 1) << text;
  EXPECT_THAT(text, HasSubstr("does not answer"));
}

TEST(Stacks, TheProgramsOwnHandlerStays) {
  const std::string text = output_of_child([] {
    std::signal(SIGUSR2, [](int) { [[maybe_unused]] const ssize_t count = ::write(STDERR_FILENO, "mine", 4); });
    print_stacks_on_signal();
    ::raise(SIGUSR2);
  });
  EXPECT_EQ(text, "mine");
}

}  // namespace
}  // namespace downpour
