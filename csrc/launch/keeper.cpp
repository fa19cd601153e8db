#include "csrc/launch/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/launch/descendants.h"
#include "csrc/launch/exit_status.h"
#include "csrc/launch/signals.h"

namespace downpour::launch {
namespace {

void forward(Signals& signals, int lifeline) {
  while (const auto number = signals.next()) {
    if (ends_job(*number) || for_workers(*number)) {
      const auto byte = static_cast<unsigned char>(*number);
      [[maybe_unused]] const ssize_t written = ::write(lifeline, &byte, 1);
    }
  }
}

// Reaps whatever was left to us; the working process's own status is the answer.
std::optional<int> reap(pid_t worker) {
  std::optional<int> result;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    result = pid == worker ? std::optional(status) : result;
  }
  return result;
}

[[noreturn]] void leave(int wait_status) {
  const ExitStatus status = to_exit_status(wait_status);
  if (status.signal != 0) {
    log_error("the launcher was ", status.text(), "; everything that it had started is ended");
  }
  end_descendants(std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ::_exit(status.shell_code());
}

[[noreturn]] void keep(Signals& signals, int lifeline, pid_t worker) {
  while (true) {
    pollfd waiting{.fd = signals.fd(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, -1);
    forward(signals, lifeline);
    if (const auto status = reap(worker)) {
      leave(*status);
    }
  }
}

}  // namespace

Keeper::Heard Keeper::next() {
  unsigned char number = 0;
  const ssize_t count = ::read(lifeline_.get(), &number, 1);
  return {.signal = count == 1 ? std::optional<int>(number) : std::nullopt, .dead = count == 0};
}

Keeper split_off_keeper() {
  Signals signals;
  become_subreaper();
  int ends[2];
  DOWNPOUR_CHECK(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe: ", std::strerror(errno));
  Fd reading(ends[0]);
  Fd writing(ends[1]);
  const pid_t child = ::fork();
  DOWNPOUR_CHECK(child >= 0, "fork: ", std::strerror(errno));
  if (child != 0) {
    reading.reset();
    keep(signals, writing.get(), child);
  }
  become_subreaper();
  return Keeper(std::move(reading));
}

}  // namespace downpour::launch
