#pragma once

#include <optional>

#include "csrc/base/fd.h"

namespace downpour::launch {

// The working process's view of the one above it: a stream of the signals that it forwards, whose end is its death. Not
// signals themselves: a terminal sends its own to both processes, and the kernel merges two of a kind that wait into one.
class Keeper {
 public:
  explicit Keeper(Fd lifeline) : lifeline_(std::move(lifeline)) {}
  int fd() const { return lifeline_.get(); }

  struct Heard {
    std::optional<int> signal;  // nullopt: none waits
    bool dead = false;
  };
  Heard next();  // never blocks

 private:
  Fd lifeline_;
};

// Splits the process in two: the caller's process, whose number the user knows, stays behind as the keeper and only
// forwards signals, waits, and ends what is left; the work goes on in its child, where this returns. So whichever of
// the two is killed with SIGKILL, the other one is still there, an ancestor (subreaper) or told by the lifeline, to end
// every descendant. The kernel's parent-death signal alone would miss those that forked twice.
// The working process must ignore the signals that it gets itself.
// Threads: call it before any other thread exists. Errors: Error when the system gives no process.
Keeper split_off_keeper();

}  // namespace downpour::launch
