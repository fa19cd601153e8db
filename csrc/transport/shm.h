#pragma once

#include <memory>

#include "csrc/base/fd.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/descriptors.h"
#include "csrc/transport/segment.h"

// A connection over shared memory, once the handshake (tcp.h) has proved that both ends share the machine.
namespace downpour::transport {

// What each end holds: the local socket (its end of file is the peer's death; carries nothing else after the handshake),
// the segment, the doorbell it sleeps on and the one it rings (eventfds).
struct ShmEnd {
  Side side = Side::kAcceptor;
  Fd socket;
  std::shared_ptr<Segment> segment;
  Fd sleeps_on;
  Fd rings;
};

// Messages are small ring entries; bulk bytes already lie in the window (or are copied there by put). A full ring queues in
// the sender's own memory and goes on when the peer has made room: the sender's thread never blocks.
std::unique_ptr<Connection> make_shm_connection(Loop& loop, ShmEnd end, const Hello& hello, const Welcome& welcome,
                                                Receiver& receiver, std::string peer, std::uint64_t largest_body_bytes);

// The segment outlives the connection for whoever still needs what lies in it (a worker's replay slots). nullptr for others.
std::shared_ptr<Segment> segment_of(Connection& connection);

}  // namespace downpour::transport
