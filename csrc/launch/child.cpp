#include "csrc/launch/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/launch/descendants.h"

namespace downpour::launch {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// Everything the child needs, made before the fork: afterwards only async-signal-safe calls are allowed.
struct Prepared {
  const ChildSpec& spec;
  std::vector<char*> arguments = pointers(spec.arguments);
  std::vector<char*> variables = pointers(spec.variables);
  pid_t parent = ::getpid();
};

bool place(int from, int to) {
  return from < 0 || (from == to ? ::fcntl(to, F_SETFD, 0) == 0 : ::dup2(from, to) == to);
}

bool own_session() { return ::setsid() >= 0; }

bool take_terminal() {
  if (::setpgid(0, 0) != 0) {
    return false;
  }
  if (::isatty(STDIN_FILENO) == 1) {
    // A background group that takes the terminal is stopped unless it ignores this signal.
    ::signal(SIGTTOU, SIG_IGN);
    ::tcsetpgrp(STDIN_FILENO, ::getpid());
    ::signal(SIGTTOU, SIG_DFL);
  }
  return true;
}

bool set_up(const Prepared& prepared) {
  const ChildSpec& spec = prepared.spec;
  bool good = spec.session == Session::kOwn ? own_session() : take_terminal();
  good = good && ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  // Had the parent died before the line above, no signal would ever come.
  if (::getppid() != prepared.parent) {
    ::_exit(127);
  }
  good = good && place(spec.standard_input, STDIN_FILENO) && place(spec.standard_output, STDOUT_FILENO) &&
         place(spec.standard_error, STDERR_FILENO);
  for (const int fd : spec.handed_over) {
    good = good && ::fcntl(fd, F_SETFD, 0) == 0;
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::signal(SIGPIPE, SIG_DFL);
  return good && ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
}

[[noreturn]] void run_child(const Prepared& prepared, int report) {
  if (set_up(prepared)) {
    ::execve(prepared.spec.program.c_str(), prepared.arguments.data(), prepared.variables.data());
  }
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &reason, sizeof(reason));
  ::_exit(127);
}

// 0 once the program runs (the exec closed the pipe), else why it does not.
int exec_result(int pipe) {
  int reason = 0;
  ssize_t count = 0;
  do {
    count = ::read(pipe, &reason, sizeof(reason));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(reason) ? reason : 0;
}

std::string reason_text(int reason) {
  switch (reason) {
    case ENOENT: return "no such file (or, for a script, no such interpreter)";
    case EACCES: return "permission denied; make it executable with chmod +x";
    case ENOEXEC: return "not a program; a script needs a first line such as #!/bin/sh";
    default: return std::strerror(reason);
  }
}

}  // namespace

Child Child::spawn(const ChildSpec& spec) {
  const Prepared prepared{spec};
  int ends[2];
  DOWNPOUR_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "cannot start '", spec.program, "': pipe: ", std::strerror(errno));
  Fd reading(ends[0]);
  Fd writing(ends[1]);
  const pid_t pid = ::fork();
  DOWNPOUR_CHECK(pid >= 0, "cannot start '", spec.program, "': fork: ", std::strerror(errno));
  if (pid == 0) {
    run_child(prepared, writing.get());
  }
  writing.reset();
  if (const int reason = exec_result(reading.get()); reason != 0) {
    ::waitpid(pid, nullptr, 0);
    throw Error(concat("cannot start '", spec.program, "': ", reason_text(reason)));
  }
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    const int reason = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    throw Error(concat("cannot start '", spec.program, "': pidfd_open: ", std::strerror(reason)));
  }
  return Child(pid, std::move(pidfd));
}

void Child::signal(int number) const { ::kill(-pid_, number); }

std::optional<Ended> Child::reap() {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != pid_) {
    return std::nullopt;
  }
  // Not reaped yet, so its number cannot belong to anybody else's group or session.
  ::kill(-pid_, SIGKILL);
  kill_session(pid_);
  int status = 0;
  struct rusage usage {};
  ::wait4(pid_, &status, 0, &usage);
  return Ended{.status = to_exit_status(status),
               .peak_memory_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024};
}

}  // namespace downpour::launch
