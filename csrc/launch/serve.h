#pragma once

#include <string>

#include "csrc/launch/options.h"

namespace downpour::launch {

// What the people who start the other processes of the job must type. Pure.
std::string serve_instructions(const ServeOptions& options, const std::string& coordinator,
                               const std::vector<std::string>& endpoints, std::uint64_t job);

// `downpour serve`: one parameter server without a launcher; server 0 hosts the coordinator too, and prints what workers and
// other servers need. SIGINT, SIGTERM and SIGHUP write a last snapshot first; once more kills at once. Returns its exit code:
// 128 + that signal, kUsageError for an address that cannot be used. Blocks: for the job's life.
int serve(const ServeOptions& options);

}  // namespace downpour::launch
