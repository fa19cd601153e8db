#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "csrc/transport/connection.h"
#include "csrc/transport/heartbeat.h"

namespace downpour::transport {

// What a handshake has settled for one end.
struct Terms {
  Side side = Side::kAcceptor;
  Hello hello;
  Welcome welcome;
  Receiver* receiver = nullptr;  // outlives the connection
  std::string peer;
  std::uint64_t largest_body_bytes = 0;
  bool lasting_bulk = false;  // as in ConnectOptions

  std::uint64_t incoming_window_bytes() const;
  std::uint64_t outgoing_window_bytes() const;
  FrameLimits incoming_limits() const;
};

// What every medium has in common: the checks before a frame is sent, credits, heartbeats, the transport's own frames. The
// medium moves frames: it takes them in transmit() and brings those of the peer to dispatch().
class FramedConnection : public Connection {
 public:
  std::string peer() const override { return terms_.peer; }
  const Hello& hello() const override { return terms_.hello; }
  std::uint64_t outgoing_window_bytes() const override { return terms_.outgoing_window_bytes(); }
  void send(std::uint16_t type, Bytes body) override;
  void put(std::uint16_t type, Bytes body, Bytes bulk, std::uint64_t window_offset, Credit credit) override;
  std::uint32_t credits() const override { return credits_; }
  void grant(std::uint32_t credits) override;
  void close() override;
  void start_heartbeat(Duration interval, Duration warn_after, Duration silence) override;
  TimePoint last_heard() const override { return last_heard_; }

 protected:
  // `loop` may be nullptr for a medium without one: then heartbeats are neither sent nor missed.
  FramedConnection(Loop* loop, Terms terms);

  virtual void transmit(const FrameHeader& header, Bytes body, Bytes bulk) = 0;  // queues; the body is copied
  virtual void flush() = 0;  // sends what is queued as far as possible now; reports nothing
  virtual void end() = 0;    // releases the medium; called once

  bool is_open() const { return state_ == State::kOpen; }
  bool said_goodbye() const { return said_goodbye_; }  // in end(): whether close() ends it, or a failure
  const Terms& terms() const { return terms_; }
  std::weak_ptr<const char> life() const { return life_; }  // expires with this: for code that called the layer above
  void heard();
  // Handles one frame of the peer. False when the connection is closed now, or destroyed: the caller must look at it no more.
  bool dispatch(const FrameHeader& header, Bytes body);
  // These end and tell the receiver; the last thing their caller does, since the receiver may destroy the connection.
  void fail(std::exception_ptr why);
  void reject(const ProtocolError& error);  // logs too: what the peer sent is no frame, or none that may come now
  void transmit_credits();                  // those that grant() has gathered; for flush()
  bool has_credits_to_transmit() const { return granted_ > 0; }

 private:
  enum class State { kOpen, kClosed };

  void check_sendable(Bytes body) const;
  void check_placeable(Bytes bulk, std::uint64_t window_offset, Credit credit) const;
  bool deliver(const FrameHeader& header, Bytes body);
  void take_credits(Bytes body);
  void count_taken();
  void beat();

  Loop* loop_;
  Terms terms_;
  State state_ = State::kOpen;
  bool said_goodbye_ = false;
  std::uint32_t credits_ = 0;  // that we may take
  std::uint32_t taken_ = 0;    // that the peer took and we have not granted back
  std::uint32_t granted_ = 0;  // granted back and not yet on their way
  TimePoint last_heard_;
  std::optional<Heartbeat> heartbeat_;
  std::shared_ptr<const char> life_ = std::make_shared<const char>('\0');  // only ever watched: expires with this
};

}  // namespace downpour::transport
