#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "csrc/base/clock.h"

// Everything that our children started, however often it forked: as a child subreaper we are the ancestor of all of it.
namespace downpour::launch {

// Orphans among our descendants become our children instead of init's.
void become_subreaper();

// The numbers of all live descendants of this process, parents first.
std::vector<pid_t> descendants();

// Kills the members of a session. Its leader must be a child of ours that has not been reaped.
void kill_session(pid_t session);

// Sends the signal to a child of ours that has not been reaped if it has a handler for it, else to the first ones below it that
// have one: to nobody whom it would end.
void signal_catchers(pid_t child, int signal);

// Reaps the dead children for whom `adopted` says true (others have an owner that waits for them).
void reap_adopted(const std::function<bool(pid_t)>& adopted);

// Kills and reaps until no descendant is left. Returns those still there at the deadline: processes that the kernel does not
// let go. Blocks: until the deadline at most.
std::vector<pid_t> end_descendants(TimePoint deadline);

}  // namespace downpour::launch
