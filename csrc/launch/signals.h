#pragma once

#include <optional>

#include "csrc/base/fd.h"

namespace downpour::launch {

// The signals that a launcher answers to, as a descriptor to be polled. Blocked from construction on in the calling thread
// and in all threads that it starts; spawned programs get them unblocked (child.h). SIGPIPE is ignored: a closed output is
// seen at the write. Threads: one.
class Signals {
 public:
  Signals();
  int fd() const { return fd_.get(); }
  std::optional<int> next();  // nullopt: none waits

 private:
  Fd fd_;
};

// A file that may not grow (RLIMIT_FSIZE) is from now on seen at the write, as a full disk is: SIGXFSZ ends nobody here. What
// this process spawns finds the signal as this process did at its own start.
void survive_file_size_limit();

// SIGINT, SIGTERM, SIGHUP, SIGQUIT: the job is to end.
bool ends_job(int signal);
// SIGUSR1, SIGUSR2: for the workers.
bool for_workers(int signal);

}  // namespace downpour::launch
