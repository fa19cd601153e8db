#include "csrc/transport/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/system_call.h"
#include "csrc/transport/lingering.h"
#include "csrc/transport/tcp_socket.h"

namespace downpour::transport {
namespace {

// What one turn takes at most, so that a fast peer does not keep the loop from the others.
constexpr std::size_t kBytesPerTurn = 8 * 1024 * 1024;
constexpr std::size_t kPartsPerCall = 64;
// From here on a few more calls cost less than a copy.
constexpr std::size_t kByPageBytes = 64 * 1024;

}  // namespace

TcpConnection::TcpConnection(Loop& loop, Fd socket, Window window, Terms terms)
    : FramedConnection(&loop, std::move(terms)),
      loop_(loop),
      socket_(std::move(socket)),
      window_(std::move(window)),
      reader_(this->terms().incoming_limits(), window_.bytes()) {
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t events) { on_events(events); });
}

void TcpConnection::start_heartbeat(Duration interval, Duration warn_after, Duration silence) {
  FramedConnection::start_heartbeat(interval, warn_after, silence);
  give_up_unacknowledged_after(socket_.get(), silence);
}

void TcpConnection::transmit(const FrameHeader& header, Bytes body, Bytes bulk) {
  if (send_error_ == 0) {
    const bool by_page = terms().lasting_bulk && page_pipe_.is_usable() && bulk.size() >= kByPageBytes;
    queue_.push(header, body, bulk, by_page ? Way::kByPage : Way::kCopied);
  }
}

void TcpConnection::keep_bulk() {
  DOWNPOUR_CHECK(!terms().lasting_bulk, "what lasts until ", peer(), " has dealt with it need not be kept");
  queue_.keep_bulk();
}

void TcpConnection::flush() {
  if (!is_dispatching_) {
    transmit_credits();
    send_queued();
    want_room(!queue_.empty());
  }
}

// What comes first: pages by the pipe, else all up to the next pages. Returns as send(2).
ssize_t TcpConnection::send_some() {
  if (const Bytes pages = queue_.next_pages(); !pages.empty()) {
    const ssize_t sent = page_pipe_.send(socket_.get(), pages);
    if (sent >= 0 || errno != ENOSYS) {
      return sent;
    }
    queue_.forget_pages();
  }
  std::array<iovec, kPartsPerCall> parts;
  const SendQueue::Gathered gathered = queue_.gather(parts);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = gathered.parts;
  const int more = gathered.pages_follow ? MSG_MORE : 0;
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT | more);
}

void TcpConnection::send_queued() {
  for (std::size_t taken = 0; !queue_.empty() && taken < kBytesPerTurn;) {
    const ssize_t sent = send_some();
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        // Reported by the loop when it reads the end of file, after what the peer sent before: that may be a goodbye.
        send_error_ = errno;
        queue_.clear();
        ::shutdown(socket_.get(), SHUT_RDWR);
      }
      break;
    }
    queue_.consume(static_cast<std::size_t>(sent));
    taken += static_cast<std::size_t>(sent);
  }
}

void TcpConnection::want_room(bool wanted) {
  if (wanted != wants_room_) {
    wants_room_ = wanted;
    loop_.change(socket_.get(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void TcpConnection::end() {
  if (said_goodbye()) {
    send_queued();
  }
  loop_.unwatch(socket_.get());
  if (said_goodbye() && send_error_ == 0) {
    linger(loop_, std::move(socket_));
  }
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
      return lose(got == 0 ? send_error_ : errno);
    }
    taken += static_cast<std::size_t>(got);
    reader_.filled(static_cast<std::size_t>(got));
    heard();
    if (!dispatch_frames()) {
      return;
    }
    // A short read has emptied the socket; but within bulk bytes the next ones come sooner than a wait for them would end.
    if (static_cast<std::size_t>(got) < space.bytes && !reader_.is_mid_bulk()) {
      return;
    }
  }
}

bool TcpConnection::dispatch_frames() {
  is_dispatching_ = true;
  const auto life = this->life();
  try {
    while (dispatch_next()) {
    }
  } catch (...) {  // of the layer above
    if (!life.expired()) {
      is_dispatching_ = false;
      loop_.post([this, life] { return life.expired() || !is_open() || dispatch_frames(); });
    }
    throw;
  }
  if (life.expired() || !is_open()) {
    return false;
  }
  is_dispatching_ = false;
  flush();
  return true;
}

// False when there is no whole frame, or no connection, any more.
bool TcpConnection::dispatch_next() {
  const FrameReader::Frame* frame = nullptr;
  try {
    frame = reader_.next();
  } catch (const ProtocolError& error) {
    reject(error);
    return false;
  }
  return frame != nullptr && dispatch(frame->header, frame->body);
}

void TcpConnection::lose(int error) {
  fail(std::make_exception_ptr(PeerLostError(
      concat(peer(), " was lost: ", error == 0 ? "its end closed without a goodbye" : system_reason(error),
             reader_.is_mid_frame() ? ", in the middle of a message" : ""))));
}

}  // namespace downpour::transport
