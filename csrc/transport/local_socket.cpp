#include "csrc/transport/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "csrc/base/text.h"

namespace downpour::transport {
namespace {

// The abstract name space: a leading zero byte, and the length counts.
socklen_t fill(sockaddr_un& address, const std::string& name) {
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd open_local() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

LocalListener listen_local() {
  LocalListener listener{open_local(), concat("downpour-", hexadecimal(system_random()), hexadecimal(system_random()))};
  sockaddr_un address{};
  const socklen_t size = fill(address, listener.name);
  const bool listening = listener.socket &&
                         ::bind(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                         ::listen(listener.socket.get(), SOMAXCONN) == 0;
  DOWNPOUR_CHECK_AS(CommError, listening, "cannot open a local socket for shared memory: ", std::strerror(errno));
  return listener;
}

Fd connect_local(const std::string& name) {
  sockaddr_un address{};
  if (name.empty() || name.size() >= sizeof(address.sun_path)) {
    return {};
  }
  const socklen_t size = fill(address, name);
  Fd socket = open_local();
  const bool connected = socket && ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0;
  return connected ? std::move(socket) : Fd();
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

}  // namespace downpour::transport
