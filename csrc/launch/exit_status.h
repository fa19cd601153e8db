#pragma once

#include <string>

namespace downpour::launch {

// How a process ended. A value.
struct ExitStatus {
  int code = 0;  // meaningful when signal is 0
  int signal = 0;
  bool core_dumped = false;

  bool success() const { return code == 0 && signal == 0; }
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  std::string text() const;  // "exit code 3", "killed by SIGSEGV (signal 11), core dumped"
  bool operator==(const ExitStatus&) const = default;
};

// Of a server that cannot use what it found (a corrupted snapshot, say), nor could its next life: EX_DATAERR of sysexits.h.
constexpr int kHopelessCode = 65;

// From the status word of wait4().
ExitStatus to_exit_status(int wait_status);

// "SIGTERM"; "signal 99" for a number without a name.
std::string signal_name(int signal);

}  // namespace downpour::launch
