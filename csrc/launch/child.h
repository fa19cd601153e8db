#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/launch/exit_status.h"

namespace downpour::launch {

// Whether a child leads a session of its own, or takes over the terminal that we run on (a debugger).
enum class Session { kOwn, kTerminal };

struct ChildSpec {
  std::string program;                 // a file; not searched for
  std::vector<std::string> arguments;  // [0] is what the program sees as its name
  std::vector<std::string> variables;  // NAME=VALUE: its whole environment
  int standard_input = -1;             // -1: ours
  int standard_output = -1;
  int standard_error = -1;
  std::vector<int> handed_over;  // descriptors that stay open, under their numbers
  Session session = Session::kOwn;
};

// What wait4() said about a process that ended.
struct Ended {
  ExitStatus status;
  std::int64_t peak_memory_bytes = 0;
};

// A running child: killed by the kernel when the thread that spawned it ends, leader of a process group of its own.
// Threads: one, the main thread (the kernel ties the child's life to the thread that spawned it).
class Child {
 public:
  // Returns when the program runs. Errors: Error naming the program and the system's reason; nothing is left behind.
  static Child spawn(const ChildSpec& spec);

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when it has ended
  void signal(int number) const;              // to its whole process group, while it has not been reaped
  // When it has ended: kills what is left of its group and its session, then reaps it. nullopt while it runs.
  std::optional<Ended> reap();

 private:
  Child(pid_t pid, Fd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_ = -1;
  Fd pidfd_;
};

}  // namespace downpour::launch
