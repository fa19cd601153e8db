#pragma once

#include <vector>

#include "csrc/base/fd.h"
#include "csrc/launch/options.h"
#include "csrc/launch/plan.h"

namespace downpour::launch {

// The listening sockets of a job: bound once, here, and inherited by those who serve them, so that no port is ever chosen
// first and bound later, and a restarted server keeps its own.
struct JobSockets {
  Fd coordinator;
  Fd master;  // c10d's rendezvous, for rank 0
  std::vector<Fd> servers;

  Endpoints endpoints() const;
};

// Errors: Error for a port in use (names it and the flag), an address that is not ours, or one off loopback without --insecure.
JobSockets bind_sockets(const RunOptions& options);

}  // namespace downpour::launch
