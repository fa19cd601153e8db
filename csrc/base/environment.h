#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"

// What the launcher tells our own code in a process through environment variables; this file's source alone reads them. What the
// launcher sets for others (MASTER_ADDR, LOCAL_RANK, ...) is in launch/plan.cpp: a program alone must not stumble over a variable
// of that name which means something else there, such as the MASTER_PORT of Kubernetes.
namespace downpour {

enum class ProcessRole { kAlone, kWorker, kServer };

struct Environment {
  ProcessRole role = ProcessRole::kAlone;  // DOWNPOUR_ROLE: "worker" or "server"; kAlone without it
  int rank = 0;                            // RANK; workers only are counted
  int world_size = 1;                      // WORLD_SIZE
  std::uint64_t job = 0;                   // DOWNPOUR_JOB: 16 hexadecimal digits
  std::string coordinator;                 // DOWNPOUR_COORDINATOR: "host:port"
  int servers = 0;                         // DOWNPOUR_SERVERS
  int server_index = -1;                   // DOWNPOUR_SERVER_INDEX
  int listen_fd = -1;                      // DOWNPOUR_LISTEN_FD: a server's listening socket
  std::string run_folder;                  // DOWNPOUR_RUN_FOLDER: snapshots, logs, summary
  std::optional<Duration> silence;         // DOWNPOUR_SILENCE: seconds; who is not heard for so long counts as lost
  bool insecure = false;                   // DOWNPOUR_INSECURE=1
  bool no_deadlines = false;               // DOWNPOUR_NO_DEADLINES=1: --gdb
};

// Errors: Error naming the variable, what it holds and what is expected; or which of those that describe a job are missing where
// others of them are set.
Environment read_environment();

// The variables that describe `environment`, for a launcher to set: {"RANK=0", ...}.
std::vector<std::string> to_variables(const Environment& environment);

// Whether "NAME=VALUE" is that variable's.
bool sets(std::string_view entry, std::string_view name);

}  // namespace downpour
