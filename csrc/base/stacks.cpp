#include "csrc/base/stacks.h"

#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string_view>

namespace downpour {
namespace {

constexpr int kFrames = 64;
constexpr int kPatienceMs = 200;  // for a thread that blocks the signal

std::atomic<bool> printing{false};
std::atomic<pid_t> turn{0};  // the thread that is to print; 0: it has

pid_t thread_id() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

void write_text(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// "stack of thread 12 (name) of process 10:" without anything that could allocate.
void write_title(pid_t thread) {
  std::array<char, 160> line{};
  char* at = line.data();
  char* const end = at + line.size();
  const auto add = [&](std::string_view text) { at = std::copy_n(text.data(), text.size(), at); };
  add("downpour: stack of thread ");
  at = std::to_chars(at, end, thread).ptr;
  add(" (");
  std::array<char, 32> name{};
  const int file = ::open("/proc/thread-self/comm", O_RDONLY | O_CLOEXEC);
  const ssize_t length = ::read(file, name.data(), name.size());
  ::close(file);
  add({name.data(), length > 1 ? static_cast<std::size_t>(length - 1) : 0});
  add(") of process ");
  at = std::to_chars(at, end, ::getpid()).ptr;
  add(":\n");
  write_text({line.data(), static_cast<std::size_t>(at - line.data())});
}

void print_own_stack() {
  std::array<void*, kFrames> frames{};
  const int count = ::backtrace(frames.data(), kFrames);
  write_title(thread_id());
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
}

void ask(pid_t thread) {
  turn = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR2) != 0) {
    return;  // it has ended
  }
  const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int waited = 0; turn == thread; ++waited) {
    if (waited == kPatienceMs) {
      write_text("downpour: a thread does not answer\n");
      return;
    }
    ::nanosleep(&pause, nullptr);
  }
}

struct Entry {  // of getdents64
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t size;
  std::uint8_t type;
  char name[1];
};

// opendir() allocates, so the folder is read as the kernel gives it.
void ask_all_others() {
  const pid_t self = thread_id();
  const int folder = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(Entry) std::array<char, 4096> buffer{};
  for (long bytes = 0; (bytes = ::syscall(SYS_getdents64, folder, buffer.data(), buffer.size())) > 0;) {
    for (long at = 0; at < bytes;) {
      const auto* const entry = reinterpret_cast<const Entry*>(buffer.data() + at);
      pid_t thread = 0;
      std::from_chars(entry->name, entry->name + std::strlen(entry->name), thread);
      if (thread > 0 && thread != self) {
        ask(thread);
      }
      at += entry->size;
    }
  }
  ::close(folder);
}

// Whoever gets the signal from outside asks the others, one after another.
void on_signal(int) {
  const int error = errno;
  if (turn == thread_id()) {
    print_own_stack();
    turn = 0;
  } else if (!printing.exchange(true)) {
    print_own_stack();
    ask_all_others();
    turn = 0;
    printing = false;
  }
  errno = error;
}

}  // namespace

void print_stacks_on_signal() {
  struct sigaction action {};
  if (::sigaction(SIGUSR2, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) {
    return;
  }
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads the library that it needs, which a handler must not
  action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
}

bool stacks_are_printed_on_signal() {
  struct sigaction action {};
  return ::sigaction(SIGUSR2, nullptr, &action) == 0 && action.sa_handler == on_signal;
}

}  // namespace downpour
