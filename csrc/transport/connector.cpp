#include "csrc/transport/connector.h"

#include <utility>

#include "csrc/base/error.h"

namespace downpour::transport {

Connector::Connector(Hello hello, Receiver& receiver, std::string peer, const ConnectOptions& options)
    : hello_(std::move(hello)), receiver_(receiver), peer_(std::move(peer)), options_(options) {}

Connection& Connector::opened() {
  DOWNPOUR_CHECK(medium_ != nullptr && !closed_, "the connection with ", peer_,
                 closed_ ? " is closed" : " is not open yet");
  return *medium_;
}

void Connector::close() {
  if (std::exchange(closed_, true)) {
    return;
  }
  if (medium_ != nullptr) {
    medium_->close();
  } else {
    abandon();
  }
}

Welcome Connector::welcome_of(const FrameHeader& header, Bytes body) const {
  if (header.type == static_cast<std::uint16_t>(FrameType::kRefused)) {
    throw ProtocolError(concat("refused ", name(hello_.role), " ", hello_.rank, ", which speaks protocol version ",
                               hello_.protocol, ": ", decode_refusal(body).reason));
  }
  DOWNPOUR_CHECK_AS(ProtocolError, header.type == static_cast<std::uint16_t>(FrameType::kWelcome),
                    "expected a welcome, found a frame of type ", header.type);
  Welcome welcome = decode_welcome(body);
  const std::uint64_t limit = options_.largest_window_bytes;
  DOWNPOUR_CHECK_AS(ProtocolError,
                    welcome.to_acceptor_window_bytes <= limit && welcome.to_connector_window_bytes <= limit,
                    "asks for windows of ", welcome.to_acceptor_window_bytes, " and ",
                    welcome.to_connector_window_bytes, " bytes; the limit is ", limit);
  return welcome;
}

void Connector::open(std::unique_ptr<Connection> medium, const Welcome& welcome) {
  abandon();
  medium_ = std::move(medium);
  receiver_.on_open(*this, welcome);
}

void Connector::fail(std::exception_ptr why) {
  if (!std::exchange(closed_, true)) {
    abandon();
    receiver_.on_closed(*this, std::move(why));
  }
}

void Connector::on_message(Connection& medium, const Message& message) {
  (void)medium;
  receiver_.on_message(*this, message);
}

void Connector::on_credit(Connection& medium) {
  (void)medium;
  receiver_.on_credit(*this);
}

void Connector::on_closed(Connection& medium, std::exception_ptr why) {
  (void)medium;
  closed_ = true;
  receiver_.on_closed(*this, std::move(why));
}

}  // namespace downpour::transport
