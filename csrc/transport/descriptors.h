#pragma once

#include <span>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/base/fd.h"

namespace downpour::transport {

// Moves open file descriptors over a connected local socket, along with a small message. At most 16 at once.
// Blocks: as the socket does; on a non-blocking one CommError where it would.
// Errors: CommError; receive also PeerLostError at end of file and ProtocolError for a longer message or more descriptors than
// expected (those are closed).
void send_descriptors(int socket, Bytes message, std::span<const int> descriptors);

struct Received {
  std::vector<std::byte> message;
  std::vector<Fd> descriptors;  // close-on-exec
};
Received receive_descriptors(int socket, std::size_t largest_message_bytes, std::size_t largest_count);

}  // namespace downpour::transport
