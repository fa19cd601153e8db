#include "csrc/transport/framed_connection.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace downpour::transport {

std::uint64_t Terms::incoming_window_bytes() const {
  return side == Side::kAcceptor ? welcome.to_acceptor_window_bytes : welcome.to_connector_window_bytes;
}

std::uint64_t Terms::outgoing_window_bytes() const {
  return side == Side::kAcceptor ? welcome.to_connector_window_bytes : welcome.to_acceptor_window_bytes;
}

FrameLimits Terms::incoming_limits() const {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::uint32_t>::max();
  return {.body_bytes = static_cast<std::uint32_t>(std::min(largest_body_bytes, kLargest)),
          .window_bytes = incoming_window_bytes()};
}

FramedConnection::FramedConnection(Loop* loop, Terms terms) : loop_(loop), terms_(std::move(terms)) {
  credits_ = terms_.side == Side::kConnector ? terms_.welcome.credits : 0;
  heard();
}

void FramedConnection::check_sendable(Bytes body) const {
  DOWNPOUR_CHECK(is_open(), "the connection with ", terms_.peer, " is closed");
  DOWNPOUR_CHECK(body.size() <= terms_.incoming_limits().body_bytes, "a message to ", terms_.peer, " has a body of ",
                 body.size(), " bytes; the limit is ", terms_.largest_body_bytes);
}

void FramedConnection::check_placeable(Bytes bulk, std::uint64_t window_offset, Credit credit) const {
  const std::uint64_t window_bytes = outgoing_window_bytes();
  DOWNPOUR_CHECK(window_offset <= window_bytes && bulk.size() <= window_bytes - window_offset, "a message to ",
                 terms_.peer, " has ", bulk.size(), " bulk bytes for offset ", window_offset,
                 ", outside the window of ", window_bytes, " bytes");
  DOWNPOUR_CHECK(credit == Credit::kNone || credits_ > 0, "a message to ", terms_.peer,
                 " takes a credit and none is left");
}

void FramedConnection::send(std::uint16_t type, Bytes body) { put(type, body, {}, 0, Credit::kNone); }

void FramedConnection::put(std::uint16_t type, Bytes body, Bytes bulk, std::uint64_t window_offset, Credit credit) {
  check_sendable(body);
  check_placeable(bulk, window_offset, credit);
  DOWNPOUR_CHECK(type >= kFirstUserType, "message type ", type, " belongs to the transport; the first free one is ",
                 kFirstUserType);
  FrameHeader header;
  header.type = type;
  header.takes_credit = credit == Credit::kTake ? 1 : 0;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.bulk_bytes = bulk.size();
  header.bulk_offset = window_offset;
  credits_ -= header.takes_credit;
  transmit(header, body, bulk);
  flush();
}

void FramedConnection::grant(std::uint32_t credits) {
  DOWNPOUR_CHECK(credits <= taken_, "granting ", credits, " credits to ", terms_.peer, ", which took ", taken_);
  if (!is_open() || credits == 0) {
    return;
  }
  taken_ -= credits;
  granted_ += credits;
  flush();
}

void FramedConnection::transmit_credits() {
  if (granted_ > 0) {
    const std::uint32_t granted = std::exchange(granted_, 0);
    const FrameHeader header{.type = static_cast<std::uint16_t>(FrameType::kCredit), .body_bytes = sizeof(granted)};
    transmit(header, std::as_bytes(std::span(&granted, 1)), {});
  }
}

void FramedConnection::close() {
  if (is_open()) {
    transmit_credits();
    transmit({.type = static_cast<std::uint16_t>(FrameType::kGoodbye)}, {}, {});
    state_ = State::kClosed;
    said_goodbye_ = true;
    heartbeat_.reset();
    end();
  }
}

void FramedConnection::fail(std::exception_ptr why) {
  if (is_open()) {
    state_ = State::kClosed;
    heartbeat_.reset();
    end();
    terms_.receiver->on_closed(*this, std::move(why));
  }
}

void FramedConnection::start_heartbeat(Duration interval, Duration warn_after, Duration silence) {
  DOWNPOUR_CHECK(is_open(), "the connection with ", terms_.peer, " is closed");
  if (loop_ == nullptr) {
    return;
  }
  const auto lost = [this](Duration silent_for) {
    fail(std::make_exception_ptr(
        PeerLostError(concat(terms_.peer, " was lost: nothing heard for ", seconds(silent_for), " s"))));
  };
  heartbeat_.emplace(
      *loop_, Heartbeat::Limits{interval, warn_after, silence}, terms_.peer, [this] { beat(); }, lost);
}

void FramedConnection::beat() {
  // What is queued already proves life as soon as it moves; beats behind it would only pile up.
  if (idle()) {
    transmit({.type = static_cast<std::uint16_t>(FrameType::kHeartbeat)}, {}, {});
    flush();
  }
}

void FramedConnection::heard() {
  if (loop_ != nullptr) {
    last_heard_ = loop_->now();
    if (heartbeat_) {
      heartbeat_->heard(last_heard_);
    }
  }
}

bool FramedConnection::dispatch(const FrameHeader& header, Bytes body) {
  const std::weak_ptr<const char> life = life_;
  try {
    return deliver(header, body) && !life.expired() && is_open();
  } catch (const ProtocolError& error) {
    if (!life.expired() && is_open()) {
      reject(error);
    }
    return false;
  }
}

void FramedConnection::reject(const ProtocolError& error) {
  log_warning("connection with ", terms_.peer, " closed: ", error.what());
  fail(std::make_exception_ptr(ProtocolError(concat(terms_.peer, ": ", error.what()))));
}

// False when the peer said goodbye.
bool FramedConnection::deliver(const FrameHeader& header, Bytes body) {
  if (header.type >= kFirstUserType) {
    if (header.takes_credit != 0) {
      count_taken();
    }
    const MutableBytes bulk =
        header.bulk_bytes == 0 ? MutableBytes{} : incoming().subspan(header.bulk_offset, header.bulk_bytes);
    terms_.receiver->on_message(*this, {header.type, body, header.bulk_offset, bulk, header.takes_credit != 0});
    return true;
  }
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::kHeartbeat: return true;
    case FrameType::kCredit: take_credits(body); return true;
    case FrameType::kGoodbye: fail(nullptr); return false;
    default: throw ProtocolError(concat("a handshake frame of type ", header.type, " after the handshake"));
  }
}

void FramedConnection::count_taken() {
  DOWNPOUR_CHECK_AS(ProtocolError, terms_.side == Side::kAcceptor && taken_ + granted_ < terms_.welcome.credits,
                    "the peer takes a credit and none is left of ", terms_.welcome.credits);
  ++taken_;
}

void FramedConnection::take_credits(Bytes body) {
  Reader reader(body, "credit");
  const auto granted = reader.get<std::uint32_t>();
  reader.finish();
  const bool plausible = terms_.side == Side::kConnector && granted <= terms_.welcome.credits - credits_;
  DOWNPOUR_CHECK_AS(ProtocolError, plausible, "the peer returns ", granted, " credits that nobody took");
  credits_ += granted;
  terms_.receiver->on_credit(*this);
}

}  // namespace downpour::transport
