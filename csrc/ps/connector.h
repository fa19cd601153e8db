#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "csrc/ps/client.h"
#include "csrc/transport/loop.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {

struct NetworkOptions {
  std::vector<std::string> servers;  // "host:port" by server index
  int shard_count = 1;
  transport::SharedMemory shared_memory = transport::SharedMemory::kAuto;
  transport::Exposure exposure = transport::Exposure::kLoopbackOnly;
  // Called after each turn of the loop: what it throws ends a wait, such as that for a shard that will never come back. Cheap.
  std::function<void()> check = {};
};

// Shards that live in server processes: TCP, and shared memory wherever both ends prove to share a machine. The name of a
// server's host is looked up at the first connect, and not again once it is known.
// Threads: one. Owns: its loop.
class NetworkConnector final : public Connector {
 public:
  // Errors: Error for an address that is none.
  NetworkConnector(const Clock& clock, NetworkOptions options);  // the clock outlives it
  std::unique_ptr<transport::Connection> connect(int shard, const transport::Hello& hello,
                                                 transport::Receiver& receiver,
                                                 const transport::ConnectOptions& options) override;
  bool run_once(TimePoint deadline, Duration spin) override;
  TimePoint now() const override;

 private:
  NetworkOptions options_;
  struct Server {
    transport::Address address;
    std::optional<transport::Endpoint> endpoint;  // once it was looked up
  };
  std::vector<Server> servers_;  // by index
  transport::Loop loop_;
};

}  // namespace downpour::ps
