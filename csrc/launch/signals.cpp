#include "csrc/launch/signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "csrc/base/error.h"

namespace downpour::launch {
namespace {

// SIGTSTP: a suspended launcher would be taken for a dead one. SIGTTOU: we may write to a terminal that a debugger owns.
constexpr int kBlocked[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD, SIGTSTP, SIGTTOU};

}  // namespace

Signals::Signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : kBlocked) {
    ::sigaddset(&set, number);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  DOWNPOUR_CHECK(fd_, "signalfd: ", std::strerror(errno));
}

std::optional<int> Signals::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

// A handler is gone after an exec, and there is the default action again; SIG_IGN would stay.
void survive_file_size_limit() {
  struct sigaction action {};
  if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = [](int) {};
    ::sigaction(SIGXFSZ, &action, nullptr);
  }
}

bool ends_job(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

bool for_workers(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

}  // namespace downpour::launch
