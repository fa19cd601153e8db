#pragma once

#include <exception>
#include <memory>
#include <string>

#include "csrc/transport/connection.h"

namespace downpour::transport {

// The connecting side's connection from before its handshake on. Until open() there is nothing to send on; from then on it
// stands in front of the medium that the handshake has chosen.
class Connector : public Connection, protected Receiver {
 public:
  std::string peer() const override { return medium_ ? medium_->peer() : peer_; }
  const Hello& hello() const override { return hello_; }
  MutableBytes outgoing() override { return medium_ ? medium_->outgoing() : MutableBytes{}; }
  MutableBytes incoming() override { return medium_ ? medium_->incoming() : MutableBytes{}; }
  std::uint64_t outgoing_window_bytes() const override { return medium_ ? medium_->outgoing_window_bytes() : 0; }
  void send(std::uint16_t type, Bytes body) override { opened().send(type, body); }
  void put(std::uint16_t type, Bytes body, Bytes bulk, std::uint64_t window_offset, Credit credit) override {
    opened().put(type, body, bulk, window_offset, credit);
  }
  void keep_bulk() override {
    if (medium_) {
      medium_->keep_bulk();
    }
  }
  std::uint32_t credits() const override { return medium_ ? medium_->credits() : 0; }
  void grant(std::uint32_t credits) override { opened().grant(credits); }
  bool idle() const override { return medium_ == nullptr || medium_->idle(); }
  void close() override;
  void start_heartbeat(Duration interval, Duration warn_after, Duration silence) override {
    opened().start_heartbeat(interval, warn_after, silence);
  }
  TimePoint last_heard() const override { return medium_ ? medium_->last_heard() : TimePoint{}; }
  Connection& in_front_of() override { return medium_ ? medium_->in_front_of() : *this; }

 protected:
  // `peer`: "server 0 at 127.0.0.1:4000".
  Connector(Hello hello, Receiver& receiver, std::string peer, const ConnectOptions& options);

  virtual void abandon() = 0;  // drops what the handshake holds; called once at most, before open() or instead of it
  const ConnectOptions& options() const { return options_; }

  // What `medium` is to be made with: a receiver that stands for this connection, and the terms of the handshake.
  Receiver& front() { return *this; }
  // The welcome in the handshake's last frame. Errors: ProtocolError when it is a refusal, or asks for too much.
  Welcome welcome_of(const FrameHeader& header, Bytes body) const;
  // These two call the receiver, which may destroy this: nothing may follow.
  void open(std::unique_ptr<Connection> medium, const Welcome& welcome);
  void fail(std::exception_ptr why);

 private:
  Connection& opened();
  void on_message(Connection& medium, const Message& message) override;
  void on_credit(Connection& medium) override;
  void on_closed(Connection& medium, std::exception_ptr why) override;

  Hello hello_;
  Receiver& receiver_;
  std::string peer_;
  ConnectOptions options_;
  std::unique_ptr<Connection> medium_;
  bool closed_ = false;
};

}  // namespace downpour::transport
