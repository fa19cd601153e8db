#pragma once

#include <string>

#include "csrc/base/fd.h"

namespace downpour::transport {

// Local (AF_UNIX) sockets of abstract names: reachable only from the same machine and network namespace, gone with their
// process. Packets keep their bounds (SOCK_SEQPACKET).

// A listening one of a random name. Errors: CommError.
struct LocalListener {
  Fd socket;
  std::string name;
};
LocalListener listen_local();

// Empty when it cannot be reached: the peer is on another machine.
Fd connect_local(const std::string& name);

// Whether the process at the other end runs as our user.
bool is_same_user(int socket);

}  // namespace downpour::transport
