#pragma once

#include <string>

#include "csrc/launch/options.h"
#include "csrc/launch/variables.h"

namespace downpour::launch {

// `downpour run`: a whole job, from the sockets to the summary. `launcher`: our own file, which servers run too.
// Returns the exit code of the job, kUsageError for what cannot be started. Blocks: for the job's life.
// The calling process becomes the keeper (keeper.h) and never returns; its child does.
int run_job(const RunOptions& options, const Variables& variables, const std::string& launcher);

}  // namespace downpour::launch
