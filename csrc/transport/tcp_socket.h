#pragma once

#include <array>
#include <optional>
#include <string>

#include "csrc/base/fd.h"
#include "csrc/transport/handshake.h"
#include "csrc/transport/tcp.h"

namespace downpour::transport {

// Errors: AuthError for an address off loopback unless kInsecure.
void check_exposure(const SocketAddress& address, Exposure exposure);
// Where a TCP socket is bound. Errors: Error for another descriptor.
SocketAddress local_socket_address(int socket);

// Options that every connection gets: no delay; keepalive, since TCP alone never notices a dead link that is idle.
void tune(int socket);
// The same for a link with unacknowledged bytes. Not before heartbeats are wanted: a peer in a debugger takes nothing either.
void give_up_unacknowledged_after(int socket, Duration silence);
// A connect to a free port of this machine may meet itself there (TCP's simultaneous open).
bool is_connected_to_itself(int socket);

// One small frame at a time from a non-blocking stream socket, never reading past its end, so that what follows the handshake
// stays for the connection. At most kLargestHandshakeBytes. Threads: one.
class HandshakeReader {
 public:
  // nullopt when more bytes are to come; the body is valid until the next read. Errors: PeerLostError at end of file,
  // ProtocolError for what is no handshake frame.
  std::optional<HandshakeFrame> read(int socket);

 private:
  bool fill(int socket, std::size_t until);

  std::array<std::byte, kLargestHandshakeBytes> bytes_;
  std::size_t filled_ = 0;
  std::optional<FrameHeader> header_;
};

// A handshake frame is small and the socket fresh: the kernel takes it whole. Errors: CommError when it does not.
void send_handshake(int socket, FrameType type, Bytes body);

}  // namespace downpour::transport
