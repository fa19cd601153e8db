#include "csrc/launch/exit_status.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "csrc/base/error.h"

namespace downpour::launch {

ExitStatus to_exit_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return {.code = 0, .signal = WTERMSIG(wait_status), .core_dumped = WCOREDUMP(wait_status) != 0};
  }
  return {.code = WEXITSTATUS(wait_status), .signal = 0, .core_dumped = false};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? concat("signal ", signal) : concat("SIG", name);
}

std::string ExitStatus::text() const {
  if (signal == 0) {
    return concat("exit code ", code);
  }
  return concat("killed by ", signal_name(signal), " (signal ", signal, ")", core_dumped ? ", core dumped" : "");
}

}  // namespace downpour::launch
