#pragma once

#include <string>

namespace downpour::backends {

// This process's place in its job, from the variables of whoever started it: `downpour run` and torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT), Open MPI (OMPI_COMM_WORLD_RANK, ...), Slurm (SLURM_PROCID, ...). With none of them: a world of one. MASTER_ADDR and
// MASTER_PORT may be missing for the latter two where all ranks are on one machine.
struct Place {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string master;  // host of rank 0's store; "" in a world of one
  int port = 0;
  int master_socket = -1;     // DOWNPOUR_MASTER_FD: rank 0's listening socket, where the launcher bound it
  bool agent_store = false;   // torchrun's agent has the store, not rank 0
  int attempt = 0;            // of torchrun's, which keeps its store over restarts
  bool insecure = false;      // DOWNPOUR_INSECURE=1
  bool no_deadlines = false;  // DOWNPOUR_NO_DEADLINES=1: --gdb
};
// Errors: Error naming the variable, what it holds and what is expected; which one lacks where others are set.
Place read_place();

}  // namespace downpour::backends
