#include "csrc/ps/connector.h"

#include <utility>

#include "csrc/base/error.h"

namespace downpour::ps {

NetworkConnector::NetworkConnector(const Clock& clock, NetworkOptions options)
    : options_(std::move(options)), loop_(clock) {
  DOWNPOUR_CHECK(!options_.servers.empty(), "connector: no server is named");
  for (const std::string& server : options_.servers) {
    servers_.push_back({transport::parse_address(server), std::nullopt});
  }
}

std::unique_ptr<transport::Connection> NetworkConnector::connect(int shard, const transport::Hello& hello,
                                                                 transport::Receiver& receiver,
                                                                 const transport::ConnectOptions& options) {
  const int index = server_of_shard(shard, options_.shard_count, static_cast<int>(servers_.size()));
  Server& server = servers_[static_cast<std::size_t>(index)];
  if (!server.endpoint) {
    server.endpoint = transport::look_up(server.address, options_.exposure);
  }
  transport::ConnectOptions named = options;
  named.peer = concat("shard ", shard, ", server ", index);
  return transport::connect_tcp(loop_, *server.endpoint, hello, receiver, options_.shared_memory, named);
}

bool NetworkConnector::run_once(TimePoint deadline, Duration spin) {
  const bool handled = loop_.run_once(deadline, spin);
  if (options_.check) {
    options_.check();
  }
  return handled;
}

TimePoint NetworkConnector::now() const { return loop_.now(); }

}  // namespace downpour::ps
