#include "csrc/launch/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/base/error.h"
#include "csrc/base/fd.h"

namespace downpour::launch {
namespace {

struct Entry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
  unsigned long long started = 0;  // in clock ticks since boot: tells a reused number from the first owner
};

std::optional<Entry> read_entry(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t count = file ? ::read(file.get(), text, sizeof(text) - 1) : -1;
  if (count <= 0) {
    return std::nullopt;
  }
  text[count] = '\0';
  // The name may hold anything, a ')' too: the fields begin after the last one.
  const char* fields = std::strrchr(text, ')');
  Entry entry{.pid = pid};
  if (fields == nullptr ||
      std::sscanf(fields, ") %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &entry.state, &entry.parent, &entry.session, &entry.started) != 4) {
    return std::nullopt;
  }
  return entry;
}

std::vector<Entry> read_entries() {
  std::vector<Entry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  for (const dirent* item = folder ? ::readdir(folder.get()) : nullptr; item != nullptr;
       item = ::readdir(folder.get())) {
    const std::string_view name = item->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) {
      if (const auto entry = read_entry(pid)) {
        entries.push_back(*entry);
      }
    }
  }
  return entries;
}

std::vector<Entry> descendant_entries() {
  const std::vector<Entry> all = read_entries();
  std::vector<Entry> found;
  std::vector<pid_t> parents = {::getpid()};
  for (std::size_t next = 0; next < parents.size(); ++next) {
    for (const Entry& entry : all) {
      if (entry.parent == parents[next]) {
        parents.push_back(entry.pid);
        found.push_back(entry);
      }
    }
  }
  return found;
}

// Signals the process that was seen, never another one that has got its number since.
void signal_seen(const Entry& seen, int signal) {
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, seen.pid, 0)));
  const auto now = pidfd ? read_entry(seen.pid) : std::nullopt;
  if (now && now->started == seen.started) {
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
  }
}

void kill_seen(const Entry& seen) { signal_seen(seen, SIGKILL); }

// Whether it has a handler of its own.
bool catches(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) {
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1) != 0;
    }
  }
  return false;
}

// Not below those that catch it: what they forked has their handler until it becomes another program.
void signal_catchers(const std::vector<Entry>& all, const Entry& root, int signal) {
  if (catches(root.pid, signal)) {
    signal_seen(root, signal);
    return;
  }
  for (const Entry& entry : all) {
    if (entry.parent == root.pid) {
      signal_catchers(all, entry, signal);
    }
  }
}

bool alive(const Entry& entry) { return entry.state != 'Z' && entry.state != 'X'; }

// Sleeps until the process ends, for at most a moment: its children become ours only then.
void wait_for_end(pid_t pid) {
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd waiting{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  ::poll(&waiting, 1, 20);
}

}  // namespace

void become_subreaper() {
  DOWNPOUR_CHECK(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl(PR_SET_CHILD_SUBREAPER): ", std::strerror(errno));
}

std::vector<pid_t> descendants() {
  std::vector<pid_t> pids;
  for (const Entry& entry : descendant_entries()) {
    if (alive(entry)) {
      pids.push_back(entry.pid);
    }
  }
  return pids;
}

void kill_session(pid_t session) {
  for (const Entry& entry : read_entries()) {
    if (entry.session == session && entry.pid != session && alive(entry)) {
      kill_seen(entry);
    }
  }
}

void signal_catchers(pid_t child, int signal) {
  if (const auto root = read_entry(child)) {
    signal_catchers(read_entries(), *root, signal);
  }
}

void reap_adopted(const std::function<bool(pid_t)>& adopted) {
  for (const Entry& entry : descendant_entries()) {
    if (entry.parent == ::getpid() && !alive(entry) && adopted(entry.pid)) {
      ::waitpid(entry.pid, nullptr, WNOHANG);
    }
  }
}

std::vector<pid_t> end_descendants(TimePoint deadline) {
  while (true) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<Entry> left = descendant_entries();
    if (left.empty() || std::chrono::steady_clock::now() >= deadline) {
      return descendants();
    }
    for (const Entry& entry : left) {
      kill_seen(entry);
    }
    wait_for_end(left.back().pid);
  }
}

}  // namespace downpour::launch
