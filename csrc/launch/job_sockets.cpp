#include "csrc/launch/job_sockets.h"

#include "csrc/base/error.h"
#include "csrc/transport/tcp.h"

namespace downpour::launch {
namespace {

class Binder {
 public:
  explicit Binder(const RunOptions& options)
      : host_(options.address), port_(options.port), exposure_(transport::exposure_of(options)) {}

  Fd next() {
    const int port = port_ == 0 ? 0 : port_++;
    try {
      return transport::bind_socket({.host = host_, .port = static_cast<std::uint16_t>(port)}, exposure_);
    } catch (const AuthError& error) {
      throw Error(concat("--address ", host_, ": ", error.what()));
    } catch (const Error& error) {
      throw Error(concat(port == 0 ? concat("--address ", host_) : concat("--port ", port), ": ", error.what()));
    }
  }

 private:
  std::string host_;
  int port_;
  transport::Exposure exposure_;
};

}  // namespace

JobSockets bind_sockets(const RunOptions& options) {
  Binder binder(options);
  JobSockets sockets;
  sockets.master = binder.next();
  sockets.coordinator = binder.next();
  for (int index = 0; index < options.servers; ++index) {
    sockets.servers.push_back(binder.next());
  }
  return sockets;
}

Endpoints JobSockets::endpoints() const {
  Endpoints result;
  const transport::Address master_at = transport::local_address(master.get());
  result.master_address = master_at.host;
  result.master_port = master_at.port;
  result.master_fd = master.get();
  result.coordinator = transport::local_address(coordinator.get()).text();
  for (const Fd& socket : servers) {
    result.servers.push_back(transport::local_address(socket.get()).text());
    result.server_fds.push_back(socket.get());
  }
  return result;
}

}  // namespace downpour::launch
