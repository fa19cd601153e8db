#include "csrc/transport/page_pipe.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string>
#include <vector>

#include "csrc/base/random.h"
#include "csrc/transport/tcp.h"
#include "csrc/transport/window.h"
#include "tests/transport/connection_suite.h"

namespace downpour::transport {
namespace {

// Two ends of one connection over loopback; the sending one does not block.
struct Ends {
  Ends() {
    const Fd door = bind_socket({"127.0.0.1", 0}, Exposure::kLoopbackOnly);
    EXPECT_EQ(::listen(door.get(), 1), 0);
    sockaddr_storage where{};
    socklen_t size = sizeof(where);
    ::getsockname(door.get(), reinterpret_cast<sockaddr*>(&where), &size);
    sender = Fd(::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(sender.get(), reinterpret_cast<sockaddr*>(&where), size), 0);
    pollfd waiting{.fd = door.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&waiting, 1, 60'000), 1);
    receiver = Fd(::accept(door.get(), nullptr, nullptr));
    ::fcntl(sender.get(), F_SETFL, O_NONBLOCK);
  }
  std::vector<std::byte> receive(std::size_t most) const {
    std::vector<std::byte> bytes(most);
    const ssize_t got = ::recv(receiver.get(), bytes.data(), most, 0);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  Fd sender, receiver;
};

TEST(PagePipe, GivesTheSocketEveryByteInOrder) {
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
TEST(PagePipe, ThePeerReadsTheBytesWhereTheyLie) {
  const Ends ends;
  PagePipe pipe;
  const Window memory(4096);
  memory.bytes()[7] = std::byte{1};  // pages that were never written to are all one
  ASSERT_EQ(pipe.send(ends.sender.get(), memory.bytes()), 4096);
  memory.bytes()[7] = std::byte{42};
  EXPECT_EQ(ends.receive(4096).at(7), std::byte{42});
}

TEST(PagePipe, UnmappedBytesArriveAsTheyWere) {
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

TEST(PagePipe, APeerThatIsGoneIsAnErrorAndNoSignal) {
  struct sigaction counts {};
  struct sigaction before {};
  counts.sa_handler = [](int) { ++heard; };
  ASSERT_EQ(::sigaction(SIGPIPE, &counts, &before), 0);
  Ends ends;
  PagePipe pipe;
  const Window memory(4096);
  ends.receiver.reset();
  std::vector<int> errors;
  for (int i = 0; i < 5; ++i) {
    if (pipe.send(ends.sender.get(), memory.bytes()) < 0) {
      errors.push_back(errno);
    }
  }
  ::sigaction(SIGPIPE, &before, nullptr);
  EXPECT_THAT(errors, testing::Contains(EPIPE));
  EXPECT_EQ(heard, 0);
  sigset_t set;
  ASSERT_EQ(::sigpending(&set), 0);
  EXPECT_EQ(::sigismember(&set, SIGPIPE), 0);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, nullptr, &set), 0);
  EXPECT_EQ(::sigismember(&set, SIGPIPE), 0);
}

TEST(PagePipe, WithoutDescriptorsItCannotBeDone) {
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
TEST(PagePipe, WhatTakesNoPagesIsNamedBeforeAnyByteIsTaken) {
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
