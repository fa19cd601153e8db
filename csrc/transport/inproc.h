#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/transport/connection.h"

// A network inside one thread, turned by hand: messages wait until the test delivers them. Product code, not a mock:
// all scripted tests run on it.
namespace downpour::transport {

// Ordered within a connection; the script decides across connections. Threads: one. Deterministic.
class InprocNetwork {
 public:
  // `loop`: only for heartbeats, which are neither sent nor missed without one; outlives the connections.
  explicit InprocNetwork(Loop* loop = nullptr);
  ~InprocNetwork();

  std::unique_ptr<Listener> listen(const std::string& name, Acceptor& acceptor);
  // Handshake frames are messages like any others: they too wait to be delivered. Where nobody listens when the first one is
  // delivered, on_closed() follows at once with TimeoutError.
  std::unique_ptr<Connection> connect(const std::string& name, const Hello& hello, Receiver& receiver,
                                      const ConnectOptions& options = {});

  // The links in the order they were made; each has two directions, 0 towards the acceptor, 1 towards the connector.
  int links() const;
  int waiting(int link, int direction) const;  // messages that wait
  bool deliver(int link, int direction);       // one message; false when none waits
  int deliver_all();                           // until nothing waits, link by link; returns how many
  void cut(int link);                          // both ends see the peer lost; what waits is gone
  // Deliveries go on for exactly so many more bytes (header, body, bulk) of that direction; then the link is cut, in the midst
  // of a message if it falls so: its bulk bytes up to there are in the window, the message itself is never delivered.
  void cut_after(int link, int direction, std::uint64_t bytes);
  void hold(int link, int direction);  // deliver_all() passes it over until release
  void release(int link, int direction);
  void refuse(const std::string& name);  // connects to it fail from now on
  void accept_again(const std::string& name);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the network and its connections, whoever dies last
};

}  // namespace downpour::transport
