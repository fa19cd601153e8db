#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "csrc/transport/page_pipe.h"
#include "csrc/transport/tcp.h"
#include "csrc/transport/window.h"

namespace downpour::transport {

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

// False where a sandbox forbids it: there TcpConnection copies.
inline bool pages_can_be_sent() {
  const Ends ends;
  const Window memory(4096);
  PagePipe pipe;
  return pipe.send(ends.sender.get(), memory.bytes()) > 0;
}

}  // namespace downpour::transport
