#include "csrc/ps/connector.h"

#include <utility>

#include "csrc/base/error.h"

namespace downpour::ps {

NetworkConnector::NetworkConnector(const Clock& clock, NetworkOptions options)
    : options_(std::move(options)), loop_(clock) {
  DOWNPOUR_CHECK(!options_.servers.empty(), "connector: no server is named");
  for (const std::string& server : options_.servers) {
    addresses_.push_back(transport::parse_address(server));
  }
}

std::unique_ptr<transport::Connection> NetworkConnector::connect(int shard, const transport::Hello& hello,
                                                                 transport::Receiver& receiver,
                                                                 const transport::ConnectOptions& options) {
  const int server = server_of_shard(shard, options_.shard_count, static_cast<int>(addresses_.size()));
  transport::ConnectOptions named = options;
  named.peer = concat("shard ", shard, ", server ", server);
  return transport::connect_tcp(loop_, addresses_[static_cast<std::size_t>(server)], hello, receiver,
                                options_.shared_memory, options_.exposure, named);
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
