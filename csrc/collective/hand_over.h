#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/base/fd.h"
#include "csrc/transport/local_socket.h"

namespace downpour::collective {

// What a wait calls every second at least: throws when there is nothing to wait for any more.
using LookUp = std::function<void()>;

// How one rank gives the others of its machine a piece of shared memory: they come to a local socket with a secret that was pinned up
// on the bulletin, and are handed the descriptor.
class MemoryOffer {
 public:
  MemoryOffer();               // Errors: CommError
  std::string ticket() const;  // for the bulletin: where to come, and the secret
  // Hands `memory` to `takers` processes. Blocks: until the last one has it, or the deadline. Errors: TimeoutError; CommError; what
  // `look_up` throws.
  void hand_over(int memory, int takers, TimePoint deadline, const LookUp& look_up);

 private:
  bool serve_one(int memory, TimePoint deadline);

  transport::LocalListener listener_;
  std::array<std::uint64_t, 2> secret_;
};

// Errors: PeerLostError where the one who offered it is gone, or refuses this ticket; ProtocolError for a ticket that is none;
// TimeoutError; CommError; what `look_up` throws.
Fd take_memory(const std::string& ticket, TimePoint deadline, const LookUp& look_up);

}  // namespace downpour::collective
