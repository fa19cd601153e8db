#include "csrc/transport/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/transport/tcp_socket.h"

namespace downpour::transport {
namespace {

// What one turn takes at most, so that a fast peer does not keep the loop from the others.
constexpr std::size_t kBytesPerTurn = 8 * 1024 * 1024;
constexpr std::size_t kPartsPerCall = 64;

}  // namespace

TcpConnection::TcpConnection(Loop& loop, Fd socket, Terms terms)
    : FramedConnection(&loop, std::move(terms)),
      loop_(loop),
      socket_(std::move(socket)),
      window_(this->terms().incoming_window_bytes()),
      reader_(this->terms().incoming_limits(), window_.bytes()) {
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t events) { on_events(events); });
}

void TcpConnection::transmit(const FrameHeader& header, Bytes body, Bytes bulk) { queue_.push(header, body, bulk); }

// A failed send is only the herald: the same failure ends the next read, and is reported there, from the loop.
void TcpConnection::flush() {
  if (has_credits_to_transmit()) {
    transmit_credits();
  }
  std::array<iovec, kPartsPerCall> parts;
  while (!queue_.empty()) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = queue_.gather(parts);
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return want_room(true);
    }
    if (sent < 0) {
      queue_.clear();
      return;
    }
    queue_.consume(static_cast<std::size_t>(sent));
  }
  want_room(false);
}

void TcpConnection::want_room(bool wanted) {
  if (wanted != wants_room_) {
    wants_room_ = wanted;
    loop_.change(socket_.get(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void TcpConnection::end() {
  flush();
  loop_.unwatch(socket_.get());
  ::shutdown(socket_.get(), SHUT_WR);
  socket_.reset();
}

void TcpConnection::on_events(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    flush();
  }
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    receive();
  }
}

void TcpConnection::receive() {
  for (std::size_t taken = 0; taken < kBytesPerTurn;) {
    auto space = reader_.space();
    const ssize_t got = ::readv(socket_.get(), space.parts.data(), space.count);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (got <= 0) {
      return lose(got == 0 ? 0 : errno);
    }
    taken += static_cast<std::size_t>(got);
    reader_.filled(static_cast<std::size_t>(got));
    heard();
    if (!dispatch_frames() || static_cast<std::size_t>(got) < space.bytes) {
      return;
    }
  }
}

bool TcpConnection::dispatch_frames() {
  for (;;) {
    const FrameReader::Frame* frame = nullptr;
    try {
      frame = reader_.next();
    } catch (const ProtocolError& error) {
      fail(std::make_exception_ptr(ProtocolError(concat(peer(), ": ", error.what()))));
      return false;
    }
    if (frame == nullptr) {
      return true;
    }
    if (!dispatch(frame->header, frame->body)) {
      return false;
    }
  }
}

void TcpConnection::lose(int error) {
  fail(std::make_exception_ptr(PeerLostError(concat(peer(), " was lost: ", error == 0 ? "its end closed without a goodbye" : system_reason(error),
                                                    reader_.is_mid_frame() ? ", in the middle of a message" : ""))));
}

}  // namespace downpour::transport
