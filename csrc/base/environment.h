#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"

// What the launcher tells a process through environment variables. This file and its source are the only ones that read them.
namespace downpour {

enum class ProcessRole { kAlone, kWorker, kServer };

struct Environment {
  ProcessRole role = ProcessRole::kAlone;  // DOWNPOUR_ROLE: "worker" or "server"; kAlone without it
  int rank = 0;                            // RANK; workers only are counted
  int world_size = 1;                      // WORLD_SIZE
  int local_rank = 0;                      // LOCAL_RANK
  int local_world_size = 1;                // LOCAL_WORLD_SIZE
  std::string master_address;              // MASTER_ADDR, MASTER_PORT: for c10d's rendezvous
  int master_port = 0;
  int master_fd = -1;                         // DOWNPOUR_MASTER_FD: rank 0 gets the listening socket of MASTER_PORT
  std::uint64_t job = 0;                      // DOWNPOUR_JOB: 16 hexadecimal digits
  std::string coordinator;                    // DOWNPOUR_COORDINATOR: "host:port"
  int servers = 0;                            // DOWNPOUR_SERVERS
  std::vector<std::string> server_endpoints;  // DOWNPOUR_SERVER_ENDPOINTS: comma-separated, for people and tools
  int server_index = -1;                      // DOWNPOUR_SERVER_INDEX
  int listen_fd = -1;                         // DOWNPOUR_LISTEN_FD: a server's listening socket
  int restarts = 0;                           // DOWNPOUR_RESTARTS: earlier lives of this process
  std::string run_folder;                     // DOWNPOUR_RUN_FOLDER: snapshots, logs, summary
  std::optional<Duration> silence;  // DOWNPOUR_SILENCE: seconds; who is not heard from for so long counts as lost
  bool insecure = false;            // DOWNPOUR_INSECURE=1
  bool no_deadlines = false;        // DOWNPOUR_NO_DEADLINES=1: --gdb
};

// Errors: Error naming the variable, what it holds and what is expected; or which of those that describe a job are missing where
// others of them are set.
Environment read_environment();

// The variables that describe `environment`, for a launcher to set: {"RANK=0", ...}.
std::vector<std::string> to_variables(const Environment& environment);

}  // namespace downpour
