#pragma once

#include <sys/socket.h>

#include "csrc/transport/address.h"

namespace downpour::transport {

// An address of numbers only, ready for the kernel. A value.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  Address address() const;
};

}  // namespace downpour::transport
