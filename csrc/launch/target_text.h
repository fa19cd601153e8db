#pragma once

#include <string>
#include <string_view>

#include "csrc/ps/membership.h"

// Names of the processes of a job, for people and files.
namespace downpour::launch {

using ps::Target;

inline Target worker(int rank) { return ps::worker_target(rank); }
inline Target server(int index) { return ps::server_target(index); }
inline bool is_worker(Target who) { return who.kind == Target::Kind::kWorker; }

inline std::string_view role_text(Target who) { return is_worker(who) ? "worker" : "server"; }
inline std::string to_text(Target who) { return ps::text(who); }                             // "worker 3"
inline std::string file_text(Target who) { return concat(role_text(who), "-", who.index); }  // "worker-3"

}  // namespace downpour::launch
