#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/transport/handshake.h"
#include "csrc/transport/tcp_socket.h"

// A peer by hand: a blocking TCP socket that may send anything, or die anywhere.
namespace downpour::transport {

class RawPeer {
 public:
  explicit RawPeer(const Address& address) {
    const SocketAddress where = look_up(address, Exposure::kLoopbackOnly).addresses.front();
    socket_ = Fd(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    is_connected_ = ::connect(socket_.get(), where.get(), where.size) == 0;
  }
  explicit RawPeer(Fd socket) : socket_(std::move(socket)), is_connected_(true) {}

  bool is_connected() const { return is_connected_; }
  bool send(Bytes bytes) const {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  bool send(std::string_view text) const { return send(as_bytes(text)); }
  bool send(FrameType type, Bytes body) const { return send(handshake_frame(type, body)); }
  // What has come and can be read without waiting; empty also at the end.
  std::vector<std::byte> receive() const {
    std::vector<std::byte> bytes(1 << 16);
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  // The other side has closed, and everything it sent has been read.
  bool is_at_end() const {
    char byte = 0;
    const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
  }
  void die() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  Fd socket_;
  bool is_connected_ = false;
};

// One frame of the layer above, as it is on the wire.
inline std::vector<std::byte> frame_bytes(FrameHeader header, Bytes body, Bytes bulk) {
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.bulk_bytes = bulk.size();
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  encode_header(header, std::span(bytes).first<kFrameHeaderBytes>());
  bytes.insert(bytes.end(), body.begin(), body.end());
  bytes.insert(bytes.end(), bulk.begin(), bulk.end());
  return bytes;
}

}  // namespace downpour::transport
