#pragma once

#include <memory>

#include "csrc/base/fd.h"
#include "csrc/transport/address.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/socket_address.h"

// TCP between machines (IPv4, IPv6), and shared memory instead wherever the handshake proves that both ends share one.
namespace downpour::transport {

enum class SharedMemory { kAuto, kNever, kRequire };
enum class Exposure { kLoopbackOnly, kInsecure };  // kInsecure: off loopback without a key, said out loud by the user
// Of whoever has been told `insecure`.
template <typename Options>
Exposure exposure_of(const Options& options) {
  return options.insecure ? Exposure::kInsecure : Exposure::kLoopbackOnly;
}

// A bound, listening socket. Port 0: the system chooses. Errors: CommError (port in use: names it and the flag to change);
// AuthError for an address off loopback unless kInsecure.
Fd bind_socket(const Address& address, Exposure exposure);
Address local_address(int socket);

// Accepts on an already listening socket (it may have been handed over by the launcher). With `shared_memory` other than
// kNever a local socket of a random abstract name is opened beside it. Same Errors as bind_socket for its address.
std::unique_ptr<Listener> listen_tcp(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory,
                                     Exposure exposure, const ListenOptions& options = {});

// An address and what its host was found to mean. A value.
struct Endpoint {
  std::string text;                      // "node1:4000", for messages
  std::vector<SocketAddress> addresses;  // tried in turn
};
// Blocks: for a name as long as the system's resolver does, so that whoever connects again keeps what was found.
// Errors: Error for a name that does not resolve; CommError when no name server answers now; AuthError for an address off
// loopback unless kInsecure.
Endpoint look_up(const Address& address, Exposure exposure);

// Returns at once; receiver.on_open() follows, or on_closed() with TimeoutError (address, attempts, last system error),
// PeerLostError, ProtocolError (refused, with the server's reason), CommError (its terms cannot be kept here). A refused connect
// is retried with back-off until the deadline.
std::unique_ptr<Connection> connect_tcp(Loop& loop, const Endpoint& endpoint, const Hello& hello, Receiver& receiver,
                                        SharedMemory shared_memory, const ConnectOptions& options = {});
// For one connection only: look_up() first, with what that says of blocking and errors.
std::unique_ptr<Connection> connect_tcp(Loop& loop, const Address& address, const Hello& hello, Receiver& receiver,
                                        SharedMemory shared_memory, Exposure exposure,
                                        const ConnectOptions& options = {});

}  // namespace downpour::transport
