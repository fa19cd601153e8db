#pragma once

#include <memory>

#include "csrc/base/fd.h"
#include "csrc/transport/address.h"
#include "csrc/transport/connection.h"

// TCP between machines (IPv4, IPv6), and shared memory instead wherever the handshake proves that both ends share one.
namespace downpour::transport {

enum class SharedMemory { kAuto, kNever, kRequire };
enum class Exposure { kLoopbackOnly, kInsecure };  // kInsecure: off loopback without a key, said out loud by the user

// A bound, listening socket. Port 0: the system chooses. Errors: CommError (port in use: names it and the flag to change);
// AuthError for an address off loopback unless kInsecure.
Fd bind_socket(const Address& address, Exposure exposure);
Address local_address(int socket);

// Accepts on an already listening socket (it may have been handed over by the launcher). With `shared_memory` other than
// kNever a local socket of a random abstract name is opened beside it. Same Errors as bind_socket for its address.
std::unique_ptr<Listener> listen_tcp(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory,
                                     Exposure exposure, const ListenOptions& options = {});

// Returns at once; receiver.on_open() follows, or on_closed() with TimeoutError (address, attempts, last system error),
// PeerLostError, ProtocolError (refused, with the server's reason). A refused connect is retried with back-off until the
// deadline. Errors: AuthError for an address off loopback unless kInsecure; Error for a name that does not resolve.
std::unique_ptr<Connection> connect_tcp(Loop& loop, const Address& address, const Hello& hello, Receiver& receiver,
                                        SharedMemory shared_memory, Exposure exposure,
                                        const ConnectOptions& options = {});

}  // namespace downpour::transport
