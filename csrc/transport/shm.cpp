#include "csrc/transport/shm.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/transport/framed_connection.h"
#include "csrc/transport/ring.h"

namespace downpour::transport {
namespace {

// A peer that never pauses must not keep the loop from its other connections.
constexpr int kFramesPerPoll = 64;

// Frames that found no room in the ring, in order. Keeps its memory.
class Backlog {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  void add(const FrameHeader& header, Bytes body) {
    if (begin_ > bytes_.size() / 2) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
      begin_ = 0;
    }
    const Bytes raw = std::as_bytes(std::span(&header, 1));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    bytes_.insert(bytes_.end(), body.begin(), body.end());
  }
  FrameHeader header() const {
    FrameHeader header;
    std::memcpy(&header, bytes_.data() + begin_, sizeof(header));
    return header;
  }
  Bytes body() const { return Bytes(bytes_).subspan(begin_ + sizeof(FrameHeader), header().body_bytes); }
  void drop() { begin_ += sizeof(FrameHeader) + header().body_bytes; }

 private:
  std::vector<std::byte> bytes_;  // from begin_ on: header, body, header, body...
  std::size_t begin_ = 0;
};

class ShmConnection final : public FramedConnection, private Poller {
 public:
  ShmConnection(Loop& loop, ShmEnd end, Terms terms);
  ~ShmConnection() override;
  void join_loop();  // apart from construction, so that a failure half-way leaves the loop again

  Medium medium() const override { return Medium::kSharedMemory; }
  MutableBytes outgoing() override { return outgoing_; }
  MutableBytes incoming() override { return incoming_; }
  void keep_bulk() override {}  // put() has moved it
  bool idle() const override { return backlog_.empty(); }
  const std::shared_ptr<Segment>& segment() const { return end_.segment; }

 private:
  // Tells the code that called back into the layer above whether this has been destroyed there.
  class Turn {
   public:
    explicit Turn(ShmConnection& connection) : connection_(connection) { connection.gone_ = &gone; }
    ~Turn() {
      if (!gone) {
        connection_.gone_ = nullptr;
      }
    }
    bool gone = false;

   private:
    ShmConnection& connection_;
  };

  void transmit(const FrameHeader& header, Bytes body, Bytes bulk) override;
  void flush() override;
  void end() override;

  bool poll() override;
  void arm() override;
  void disarm() override { consumer_.awake(); }

  void send_backlog();
  std::optional<RingConsumer::Item> pop();
  bool end_if_over(bool has_more);
  void on_socket();
  void ring() const;
  void fail_soon(std::exception_ptr why);
  std::exception_ptr named(const ProtocolError& error) const;

  Loop& loop_;
  ShmEnd end_;
  MutableBytes incoming_;
  MutableBytes outgoing_;
  RingProducer producer_;
  RingConsumer consumer_;
  Backlog backlog_;
  std::exception_ptr failure_;  // found inside a call of the layer above: reported from the loop
  bool peer_is_gone_ = false;   // but what it sent before may still lie in the ring
  bool* gone_ = nullptr;        // not nullptr: poll() is running
};

bool is_acceptor(const ShmEnd& end) { return end.side == Side::kAcceptor; }

ShmConnection::ShmConnection(Loop& loop, ShmEnd end, Terms terms)
    : FramedConnection(&loop, std::move(terms)),
      loop_(loop),
      end_(std::move(end)),
      incoming_(is_acceptor(end_) ? end_.segment->window_to_acceptor() : end_.segment->window_to_connector()),
      outgoing_(is_acceptor(end_) ? end_.segment->window_to_connector() : end_.segment->window_to_acceptor()),
      producer_(is_acceptor(end_) ? end_.segment->control_to_connector() : end_.segment->control_to_acceptor(),
                is_acceptor(end_) ? end_.segment->ring_to_connector() : end_.segment->ring_to_acceptor()),
      consumer_(is_acceptor(end_) ? end_.segment->control_to_acceptor() : end_.segment->control_to_connector(),
                is_acceptor(end_) ? end_.segment->ring_to_acceptor() : end_.segment->ring_to_connector(),
                this->terms().incoming_limits()) {}

void ShmConnection::join_loop() {
  loop_.add(*this);
  // Edge-triggered: each ring is an edge, so the doorbell's counter need not be read, which saves a system call a wake-up.
  loop_.watch(end_.sleeps_on.get(), EPOLLIN | EPOLLET, [this](std::uint32_t) { poll(); });
  loop_.watch(end_.socket.get(), EPOLLIN | EPOLLRDHUP, [this](std::uint32_t) { on_socket(); });
}

ShmConnection::~ShmConnection() {
  close();
  if (gone_ != nullptr) {
    *gone_ = true;
  }
}

void ShmConnection::transmit(const FrameHeader& header, Bytes body, Bytes bulk) {
  std::byte* place = outgoing_.data() + header.bulk_offset;
  if (!bulk.empty() && bulk.data() != place) {
    std::memmove(place, bulk.data(), bulk.size());
  }
  if (failure_) {
    return;
  }
  try {
    if (!backlog_.empty() || !producer_.push(header, body)) {
      backlog_.add(header, body);
    }
  } catch (const ProtocolError& error) {
    fail_soon(named(error));
  }
}

void ShmConnection::flush() {
  if (failure_) {
    return;
  }
  try {
    send_backlog();
    if (has_credits_to_transmit() && backlog_.empty()) {
      transmit_credits();
    }
    if (producer_.consumer_sleeps()) {
      ring();
    }
  } catch (const ProtocolError& error) {
    fail_soon(named(error));
  }
}

void ShmConnection::send_backlog() {
  while (!backlog_.empty() && producer_.push(backlog_.header(), backlog_.body())) {
    backlog_.drop();
  }
}

void ShmConnection::end() {
  flush();
  loop_.remove(*this);
  loop_.unwatch(end_.sleeps_on.get());
  loop_.unwatch(end_.socket.get());
  end_.socket.reset();
  end_.sleeps_on.reset();
  end_.rings.reset();
}

bool ShmConnection::poll() {
  if (!is_open() || gone_ != nullptr) {
    return false;
  }
  Turn turn(*this);
  const bool was_idle = idle();
  int frames = 0;
  for (auto item = pop(); item; item = frames < kFramesPerPoll ? pop() : std::nullopt) {
    if (frames++ == 0) {
      heard();
    }
    if (!dispatch(item->header, item->body)) {
      return true;
    }
  }
  flush();
  if (consumer_.producer_waits()) {
    ring();
  }
  return end_if_over(frames == kFramesPerPoll) || frames > 0 || idle() != was_idle;
}

std::optional<RingConsumer::Item> ShmConnection::pop() {
  if (failure_) {
    return std::nullopt;
  }
  try {
    return consumer_.pop();
  } catch (const ProtocolError& error) {
    fail_soon(named(error));
    return std::nullopt;
  }
}

bool ShmConnection::end_if_over(bool has_more) {
  if (failure_) {
    fail(failure_);
    return true;
  }
  if (peer_is_gone_ && !has_more) {
    fail(std::make_exception_ptr(PeerLostError(concat(peer(), " was lost: its end closed without a goodbye"))));
    return true;
  }
  return false;
}

void ShmConnection::arm() {
  consumer_.sleep();
  // Complete in itself: the ring for what came before the flag would never come.
  if (gone_ == nullptr && (!consumer_.empty() || peer_is_gone_ || failure_)) {
    loop_.wake();
  }
}

void ShmConnection::on_socket() {
  std::byte byte;
  const ssize_t got = ::recv(end_.socket.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  loop_.unwatch(end_.socket.get());
  if (got > 0) {
    fail_soon(named(ProtocolError("bytes on the local socket after the handshake")));
  }
  peer_is_gone_ = true;
  poll();
}

void ShmConnection::ring() const {
  // A full counter (EAGAIN) has the peer awake already.
  [[maybe_unused]] const int rung = eventfd_write(end_.rings.get(), 1);
}

void ShmConnection::fail_soon(std::exception_ptr why) {
  if (!failure_) {
    failure_ = std::move(why);
    loop_.wake();
  }
}

std::exception_ptr ShmConnection::named(const ProtocolError& error) const {
  return std::make_exception_ptr(ProtocolError(concat(peer(), ": ", error.what())));
}

void check_end(const ShmEnd& end, const Welcome& welcome) {
  DOWNPOUR_CHECK(end.segment != nullptr && end.socket && end.sleeps_on && end.rings,
                 "a connection over shared memory needs a segment, a socket and two doorbells");
  const Segment::Sizes& sizes = end.segment->sizes();
  DOWNPOUR_CHECK(sizes.to_acceptor_window_bytes == welcome.to_acceptor_window_bytes &&
                     sizes.to_connector_window_bytes == welcome.to_connector_window_bytes,
                 "a segment with windows of ", sizes.to_acceptor_window_bytes, " and ", sizes.to_connector_window_bytes,
                 " bytes for a welcome to ", welcome.to_acceptor_window_bytes, " and ",
                 welcome.to_connector_window_bytes);
}

// A doorbell that blocks would hand our thread to the peer. The flag belongs to both ends, so a peer could take it back; but the
// peer runs as our own user and could as well stop us with a signal.
void never_block(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  DOWNPOUR_CHECK_AS(CommError, flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0,
                    "doorbell of shared memory: ", std::generic_category().message(errno));
}

}  // namespace

std::unique_ptr<Connection> make_shm_connection(Loop& loop, ShmEnd end, const Hello& hello, const Welcome& welcome,
                                                Receiver& receiver, std::string peer,
                                                std::uint64_t largest_body_bytes) {
  check_end(end, welcome);
  never_block(end.sleeps_on.get());
  never_block(end.rings.get());
  Terms terms{end.side, hello, welcome, &receiver, std::move(peer), largest_body_bytes};
  auto connection = std::make_unique<ShmConnection>(loop, std::move(end), std::move(terms));
  connection->join_loop();
  return connection;
}

std::shared_ptr<Segment> segment_of(Connection& connection) {
  const auto* shm = dynamic_cast<const ShmConnection*>(&connection.in_front_of());
  return shm != nullptr ? shm->segment() : nullptr;
}

}  // namespace downpour::transport
