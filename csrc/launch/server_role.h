#pragma once

#include "csrc/launch/options.h"

namespace downpour::launch {

// `downpour server`: one server of a job of `downpour run`, which has described it in the environment. Returns its exit code.
// Blocks: for the job's life.
int run_server_role(const ServerOptions& options);

}  // namespace downpour::launch
