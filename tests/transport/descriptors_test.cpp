#include "csrc/transport/descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

struct Sockets {
  explicit Sockets(int type = SOCK_STREAM) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
  Fd a, b;
};

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

ino_t identity(int fd) {
  struct stat status {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return status.st_ino;
}

std::vector<int> some(const Fd& fd, std::size_t count) { return std::vector<int>(count, fd.get()); }

TEST(Descriptors, ArriveOpenAndCloseOnExec) {
  Sockets sockets;
  const Fd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC)), other(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  send_descriptors(sockets.a.get(), as_bytes("two"), std::vector<int>{file.get(), other.get()});
  const Received received = receive_descriptors(sockets.b.get(), 100, 2);
  EXPECT_TRUE(std::ranges::equal(received.message, as_bytes("two")));
  ASSERT_EQ(received.descriptors.size(), 2u);
  EXPECT_EQ(identity(received.descriptors[0].get()), identity(file.get()));
  EXPECT_EQ(identity(received.descriptors[1].get()), identity(other.get()));
  EXPECT_NE(fcntl(received.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Descriptors, AMessageMayComeWithoutAny) {
  Sockets sockets;
  send_descriptors(sockets.a.get(), as_bytes("none"), {});
  EXPECT_TRUE(receive_descriptors(sockets.b.get(), 4, 0).descriptors.empty());
}

// 3 descriptors fill the same aligned space as 4, so the kernel does not report the fourth as cut off.
TEST(Descriptors, MoreThanExpectedAreClosedAndRefused) {
  const Fd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  for (const auto& [sent, expected] : {std::pair{4u, 3u}, {1u, 0u}, {16u, 2u}, {2u, 1u}}) {
    Sockets sockets;
    const auto before = open_descriptors();
    send_descriptors(sockets.a.get(), as_bytes("x"), some(file, sent));
    EXPECT_THROW(receive_descriptors(sockets.b.get(), 10, expected), ProtocolError) << sent << " for " << expected;
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(Descriptors, ALongerMessageIsRefused) {
  Sockets sockets(SOCK_SEQPACKET);
  const Fd file(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  const auto before = open_descriptors();
  send_descriptors(sockets.a.get(), as_bytes("four"), some(file, 1));
  EXPECT_THROW(receive_descriptors(sockets.b.get(), 3, 1), ProtocolError);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Descriptors, TheEndOfTheSocketIsALostPeer) {
  Sockets sockets;
  sockets.a.reset();
  EXPECT_THROW(receive_descriptors(sockets.b.get(), 10, 1), PeerLostError);
  EXPECT_THROW(send_descriptors(sockets.b.get(), as_bytes("x"), {}), CommError);
}

TEST(Descriptors, NothingThereOnASocketThatDoesNotBlock) {
  Sockets sockets;
  EXPECT_THROW(receive_descriptors(sockets.b.get(), 10, 1), CommError);
}

TEST(Descriptors, TheCallersMistakes) {
  Sockets sockets;
  EXPECT_THROW(send_descriptors(sockets.a.get(), {}, {}), Error);
  EXPECT_THROW(send_descriptors(sockets.a.get(), as_bytes("x"), std::vector<int>(17, 0)), Error);
  EXPECT_THROW(receive_descriptors(sockets.b.get(), 10, 17), Error);
  EXPECT_THROW(send_descriptors(sockets.a.get(), as_bytes("x"), std::vector<int>{-1}), CommError);
}

}  // namespace
}  // namespace downpour::transport
