#pragma once

#include <sys/types.h>

#include "csrc/base/fd.h"

namespace downpour::launch {

// The working process's view of the one above it.
struct Keeper {
  pid_t pid = 0;
  Fd lifeline;                             // readable (end of file) once the keeper is dead
};

// Splits the process in two: the caller's process, whose number the user knows, stays behind as the keeper and only
// forwards signals, waits, and ends what is left; the work goes on in its child, where this returns. So whichever of
// the two is killed with SIGKILL, the other one is still there, an ancestor (subreaper) or told by the lifeline, to end
// every descendant. The kernel's parent-death signal alone would miss those that forked twice.
// Both get the terminal's signals: the working process must answer only to those that the keeper sends.
// Threads: call it before any other thread exists. Errors: Error when the system gives no process.
Keeper split_off_keeper();

}  // namespace downpour::launch
