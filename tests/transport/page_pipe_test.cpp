#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "csrc/base/random.h"
#include "tests/transport/connection_suite.h"
#include "tests/transport/page_ends.h"

namespace downpour::transport {
namespace {

// Where a sandbox forbids it, TcpConnection copies.
class PagePipeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!pages_can_be_sent()) {
      GTEST_SKIP() << "this system gives a socket no pages";
    }
  }
};

TEST_F(PagePipeTest, GivesTheSocketEveryByteInOrder) {
  Random random(1);
  const Ends ends;
  PagePipe pipe;
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, std::size_t{70'001}, std::size_t{5'000'003}}) {
    const std::vector<std::byte> bytes = pattern(size, size);
    std::vector<std::byte> received;
    for (Bytes left = bytes; received.size() < size;) {
      const ssize_t sent = left.empty() ? -1 : pipe.send(ends.sender.get(), left);
      if (sent > 0) {
        left = left.subspan(static_cast<std::size_t>(sent));
      } else {
        ASSERT_TRUE(left.empty() || errno == EAGAIN) << errno;
        const auto some = ends.receive(1 + random.below(300'000));
        ASSERT_FALSE(some.empty());
        received.insert(received.end(), some.begin(), some.end());
      }
    }
    EXPECT_TRUE(received == bytes) << size;
    EXPECT_TRUE(pipe.is_empty());
  }
}

// What saves the copy, and why the bytes must stay.
TEST_F(PagePipeTest, ThePeerReadsTheBytesWhereTheyLie) {
  const Ends ends;
  PagePipe pipe;
  const Window memory(4096);
  memory.bytes()[7] = std::byte{1};  // pages that were never written to are all one
  ASSERT_EQ(pipe.send(ends.sender.get(), memory.bytes()), 4096);
  memory.bytes()[7] = std::byte{42};
  EXPECT_EQ(ends.receive(4096).at(7), std::byte{42});
}

TEST_F(PagePipeTest, UnmappedBytesArriveAsTheyWere) {
  const Ends ends;
  PagePipe pipe;
  {
    const Window memory(4096);
    memory.bytes()[7] = std::byte{42};
    ASSERT_EQ(pipe.send(ends.sender.get(), memory.bytes()), 4096);
  }
  const Window others(4096);
  std::ranges::fill(others.bytes(), std::byte{1});
  EXPECT_EQ(ends.receive(4096).at(7), std::byte{42});
}

int heard = 0;  // by the handler below

// Also where the socket takes the first pages of a call, and meets the end with those that follow.
TEST_F(PagePipeTest, APeerThatIsGoneIsAnErrorAndNoSignal) {
  struct sigaction counts {};
  struct sigaction before {};
  counts.sa_handler = [](int) { ++heard; };
  ASSERT_EQ(::sigaction(SIGPIPE, &counts, &before), 0);
  for (const std::uint64_t size : {512 * 1024, 4096}) {
    Ends ends;
    PagePipe pipe;
    const Window memory(size);
    ends.receiver.reset();
    std::vector<int> errors;
    for (int i = 0; i < 5; ++i) {
      errno = 0;
      if (pipe.send(ends.sender.get(), memory.bytes()) < 0) {
        errors.push_back(errno);
      }
    }
    EXPECT_THAT(errors, testing::Contains(EPIPE)) << size;
  }
  ::sigaction(SIGPIPE, &before, nullptr);
  EXPECT_EQ(heard, 0);
  sigset_t set;
  ASSERT_EQ(::sigpending(&set), 0);
  EXPECT_EQ(::sigismember(&set, SIGPIPE), 0);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &set), 0);
  EXPECT_EQ(::sigismember(&set, SIGPIPE), 0);
}

TEST_F(PagePipeTest, ASignalThatWaitedBeforeStays) {
  sigset_t set, before;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &set, &before), 0);
  ::raise(SIGPIPE);
  Ends ends;
  PagePipe pipe;
  const Window memory(4096);
  ends.receiver.reset();
  for (int i = 0; i < 3; ++i) {
    pipe.send(ends.sender.get(), memory.bytes());
  }
  const timespec at_once{};
  EXPECT_EQ(::sigtimedwait(&set, nullptr, &at_once), SIGPIPE);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

TEST_F(PagePipeTest, WithoutDescriptorsItCannotBeDone) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object's memory";
#endif
  const Ends ends;
  PagePipe pipe;
  const Window memory(4096);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const ssize_t sent = pipe.send(ends.sender.get(), memory.bytes());
  const int error = errno;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(sent, -1);
  EXPECT_EQ(error, ENOSYS);
  EXPECT_FALSE(pipe.is_usable());
  EXPECT_EQ(pipe.send(ends.sender.get(), memory.bytes()), -1) << "and it stays so";
}

// Nothing that was in the pipe is lost: none of it was taken.
TEST_F(PagePipeTest, WhatTakesNoPagesIsNamedBeforeAnyByteIsTaken) {
  const std::string path = testing::TempDir() + "page_pipe_test." + std::to_string(::getpid());
  const Fd appended(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  ::unlink(path.c_str());
  PagePipe pipe;
  const Window memory(4096);
  EXPECT_EQ(pipe.send(appended.get(), memory.bytes()), -1);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_TRUE(pipe.is_empty());
  EXPECT_FALSE(pipe.is_usable());
}

}  // namespace
}  // namespace downpour::transport
