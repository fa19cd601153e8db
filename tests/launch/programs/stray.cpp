// Leaves a process behind that nobody is the parent of: forked twice, leader of a session of its own, deaf to every polite
// signal. `stray` then ends; `stray stays` waits to be killed, just as deaf.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <initializer_list>

namespace {

void become_deaf() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    std::signal(number, SIG_IGN);
  }
}

[[noreturn]] void live_as_stray(int report) {
  become_deaf();
  [[maybe_unused]] const ssize_t written = ::write(report, "x", 1);
  ::close(report);
  while (true) {
    ::pause();
  }
}

}  // namespace

int main(int argc, char** argv) {
  int ends[2];
  if (::pipe(ends) != 0) {
    return 1;
  }
  if (::fork() == 0) {
    ::setsid();
    if (::fork() == 0) {
      live_as_stray(ends[1]);
    }
    ::_exit(0);
  }
  become_deaf();
  ::close(ends[1]);
  char byte = 0;
  if (::read(ends[0], &byte, 1) != 1) {
    return 1;
  }
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "the stray lives\n", 16);
  while (argc > 1 && std::strcmp(argv[1], "stays") == 0) {
    ::pause();
  }
  return 0;
}
