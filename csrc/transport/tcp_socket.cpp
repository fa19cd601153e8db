#include "csrc/transport/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include "csrc/base/system_call.h"
#include "csrc/transport/handshake.h"

namespace downpour::transport {
namespace {

constexpr int kKeepaliveIdleSeconds = 1;
constexpr int kKeepaliveIntervalSeconds = 1;
constexpr int kKeepaliveProbes = 3;

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

Fd open_listening(const SocketAddress& where) {
  Fd socket(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    return {};
  }
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.storage.ss_family == AF_INET6) {
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  const bool listening = ::bind(socket.get(), where.get(), where.size) == 0 && ::listen(socket.get(), SOMAXCONN) == 0;
  return listening ? std::move(socket) : Fd();
}

}  // namespace

void check_exposure(const SocketAddress& address, Exposure exposure) {
  DOWNPOUR_CHECK_AS(
      AuthError, exposure == Exposure::kInsecure || address.is_loopback(), address.address().text(),
      " is not a loopback address, and connections off this machine have no key yet: anyone who reaches the port "
      "could read and change the parameters; use 127.0.0.1, or say --insecure on a network you trust");
}

Endpoint look_up(const Address& address, Exposure exposure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  DOWNPOUR_CHECK_AS(CommError, error != EAI_AGAIN, "the host of ", address.text(),
                    " cannot be looked up now: ", ::gai_strerror(error));
  DOWNPOUR_CHECK(error == 0, "the host of ", address.text(), " does not resolve: ", ::gai_strerror(error),
                 "; expected an address such as 127.0.0.1:4000, [::1]:4000 or a known name");
  Endpoint endpoint{address.text(), {}};
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    SocketAddress& resolved = endpoint.addresses.emplace_back();
    std::memcpy(&resolved.storage, one->ai_addr, one->ai_addrlen);
    resolved.size = one->ai_addrlen;
  }
  ::freeaddrinfo(found);
  for (const auto& one : endpoint.addresses) {
    check_exposure(one, exposure);
  }
  return endpoint;
}

void tune(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

void give_up_unacknowledged_after(int socket, Duration silence) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(silence).count();
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<std::int64_t>(limit, std::numeric_limits<int>::max())));
}

bool is_connected_to_itself(int socket) {
  sockaddr_storage ours{};
  sockaddr_storage theirs{};
  socklen_t our_size = sizeof(ours);
  socklen_t their_size = sizeof(theirs);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &our_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) == 0 && our_size == their_size &&
         std::memcmp(&ours, &theirs, our_size) == 0;
}

Fd bind_socket(const Address& address, Exposure exposure) {
  int error = 0;
  for (const auto& where : look_up(address, exposure).addresses) {
    if (Fd socket = open_listening(where)) {
      return socket;
    }
    error = errno;
  }
  throw CommError(concat(
      "cannot listen at ", address.text(), ": ", system_reason(error),
      error == EADDRINUSE ? "; another process has the port: choose another one with --port, or 0 for any" : ""));
}

SocketAddress local_socket_address(int socket) {
  SocketAddress local;
  local.size = sizeof(local.storage);
  const bool known = ::getsockname(socket, reinterpret_cast<sockaddr*>(&local.storage), &local.size) == 0 &&
                     (local.storage.ss_family == AF_INET || local.storage.ss_family == AF_INET6);
  DOWNPOUR_CHECK(known, "descriptor ", socket, " is no TCP socket");
  return local;
}

Address local_address(int socket) { return local_socket_address(socket).address(); }

std::optional<HandshakeFrame> HandshakeReader::read(int socket) {
  if (!header_) {
    if (!fill(socket, kFrameHeaderBytes)) {
      return std::nullopt;
    }
    header_ = decode_header(std::span<const std::byte>(bytes_).first<kFrameHeaderBytes>(), kHandshakeLimits);
  }
  if (!fill(socket, kFrameHeaderBytes + header_->body_bytes)) {
    return std::nullopt;
  }
  const HandshakeFrame frame{*header_, Bytes(bytes_).subspan(kFrameHeaderBytes, header_->body_bytes)};
  header_.reset();
  filled_ = 0;
  return frame;
}

bool HandshakeReader::fill(int socket, std::size_t until) {
  while (filled_ < until) {
    const ssize_t got = ::recv(socket, bytes_.data() + filled_, until - filled_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    DOWNPOUR_CHECK_AS(PeerLostError, got > 0,
                      "the connection ended during the handshake: ", got == 0 ? "end of file" : system_reason(errno));
    filled_ += static_cast<std::size_t>(got);
  }
  return true;
}

void send_handshake(int socket, FrameType type, Bytes body) {
  const auto frame = handshake_frame(type, body);
  const ssize_t sent = ::send(socket, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  DOWNPOUR_CHECK_AS(
      PeerLostError, sent == static_cast<ssize_t>(frame.size()),
      "the connection ended during the handshake: ", sent < 0 ? system_reason(errno) : "the socket takes no more");
}

}  // namespace downpour::transport
