#include "csrc/ps/coordinator_link.h"

#include <unistd.h>

#include <utility>

#include "csrc/base/error.h"
#include "csrc/ps/coordinator.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {
namespace {

constexpr Duration kWarnAfter = std::chrono::seconds(2);

}  // namespace

CoordinatorLink::CoordinatorLink(transport::Loop& loop, const ServerOptions& options) : options_(options) {
  Writer body;
  encode(JoinJob{::getpid()}, body);
  transport::Hello hello;
  hello.job = options.job;
  hello.role = transport::Role::kServer;
  hello.rank = options.index;
  hello.body = body.take();
  transport::ConnectOptions connect;
  connect.peer = "coordinator";
  connect.largest_body_bytes = Coordinator::kLargestBodyBytes;
  connection_ = transport::connect_tcp(loop, transport::parse_address(options.coordinator), hello, *this,
                                       transport::SharedMemory::kNever, transport::exposure_of(options), connect);
}

std::vector<Fence> CoordinatorLink::take_fences() { return std::exchange(fences_, {}); }

void CoordinatorLink::check_alive() const {
  if (lost_ && why_lost_ != nullptr) {
    std::rethrow_exception(why_lost_);
  }
  DOWNPOUR_CHECK_AS(PeerLostError, !lost_, "server ", options_.index, ": the coordinator at ", options_.coordinator,
                    " said goodbye before the job was finished");
}

void CoordinatorLink::say_ready(const ServerReady& ready) {
  if (connection_ != nullptr) {
    out_.clear();
    encode(ready, out_);
    connection_->send(static_cast<std::uint16_t>(MessageType::kServerReady), out_.bytes());
  }
}

void CoordinatorLink::report(const ServerStatus& status) {
  if (joined_ && connection_ != nullptr) {
    out_.clear();
    encode(status, out_);
    connection_->send(static_cast<std::uint16_t>(MessageType::kServerStatus), out_.bytes());
  }
}

void CoordinatorLink::on_open(transport::Connection& connection, const transport::Welcome& welcome) {
  (void)welcome;
  connection.start_heartbeat(options_.heartbeat, kWarnAfter, options_.silence);
}

void CoordinatorLink::on_message(transport::Connection& connection, const transport::Message& message) {
  (void)connection;
  switch (static_cast<MessageType>(message.type)) {
    case MessageType::kJoined: joined_ = decode<Joined>(message.body); return;
    case MessageType::kSchema: agreement_ = decode<Agreement>(message.body); return;
    case MessageType::kFence: fences_.push_back(decode<Fence>(message.body)); return;
    case MessageType::kAskDecided: asked_ = true; return;
    case MessageType::kFinished: finished_ = true; return;
    case MessageType::kAbort: abort_reason_ = decode<Reason>(message.body).text; return;
    default: throw ProtocolError(concat("a message of type ", message.type, " is not for a server"));
  }
}

void CoordinatorLink::on_closed(transport::Connection& connection, std::exception_ptr why) {
  (void)connection;
  lost_ = true;
  why_lost_ = std::move(why);
  connection_.reset();
}

}  // namespace downpour::ps
