#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/launch/options.h"
#include "csrc/launch/target_text.h"
#include "csrc/launch/variables.h"

// What each process of a job is told through its environment. Pure.
namespace downpour::launch {

struct Endpoints {
  std::string coordinator;     // "host:port"
  std::string master_address;  // for c10d's rendezvous; rank 0 inherits its listening socket
  int master_port = 0;
  int master_fd = -1;
  std::vector<std::string> servers;
  std::vector<int> server_fds;
};

struct Plan {
  std::uint64_t job = 0;
  std::string run_folder;
  Endpoints endpoints;
  Variables user;            // the launcher's own environment with -x applied
  int threads = 0;           // per worker
  std::string threads_text;  // "1 thread each (2 cores / 2 workers)"
};

// The user's environment without what a launcher above us left in it, with -x applied.
// Errors: Error for -x NAME that is not set.
Variables user_variables(const RunOptions& options, const Variables& ours);

// Fills in threads and threads_text.
void plan_threads(const RunOptions& options, int cores, Plan& plan);

// The whole environment of one process.
std::vector<std::string> variables_of(const RunOptions& options, const Plan& plan, Target who, int life);

// One line for the user.
std::string to_text(const RunOptions& options, const Plan& plan);

}  // namespace downpour::launch
