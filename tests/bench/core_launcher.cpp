// How long the launcher takes from its start to a worker's first instruction, and how much memory a server without parameters
// needs. With two arguments it is the worker.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "tests/bench/bench.h"

extern char** environ;

namespace {

using namespace downpour;
using namespace downpour::bench;

int run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = 0;
  DOWNPOUR_CHECK(::posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0, "cannot start ",
                 words[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

double value_in(const std::string& path) {
  double value = 0;
  DOWNPOUR_CHECK(std::ifstream(path) >> value && value > 0, "the worker wrote nothing into ", path);
  return value;
}

double resident_mb(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    if (word == "VmRSS:") {
      double kilobytes = 0;
      file >> kilobytes;
      return kilobytes / 1024;
    }
  }
  return 0;
}

// By process id; the servers are this worker's siblings.
std::map<int, double> siblings_mb() {
  const std::string parent = std::to_string(::getppid());
  std::ifstream children("/proc/" + parent + "/task/" + parent + "/children");
  std::map<int, double> found;
  for (int pid = 0; children >> pid;) {
    if (pid != ::getpid()) {
      found[pid] = resident_mb(pid);
    }
  }
  return found;
}

// In a worker: the most that any server held, looked at for a second, since they start at the same time as we.
double largest_server_mb(std::size_t servers) {
  double largest = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto found = siblings_mb();
    DOWNPOUR_CHECK(found.size() >= servers, "found ", found.size(), " siblings, expected ", servers, " servers");
    for (const auto& [pid, size_mb] : found) {
      largest = std::max(largest, size_mb);
    }
  }
  return largest;
}

void start_figure(const std::string& self, const std::string& out) {
  Rounds starts_ms;
  for (int i = -2; i < 21; ++i) {
    const double begin = now_s();
    DOWNPOUR_CHECK(run({DOWNPOUR_PROGRAM, "run", "--quiet", "--", self, "stamp", out}) == 0, "the launcher failed");
    if (i >= 0) {
      starts_ms.add(1e3 * (value_in(out) - begin));
    }
  }
  Line("launcher.start_ms", starts_ms, Better::kLess, "ms").at_most(50).print();
}

void memory_figure(const std::string& self, const std::string& out) {
  Rounds sizes_mb;
  for (int i = 0; i < 3; ++i) {
    DOWNPOUR_CHECK(run({DOWNPOUR_PROGRAM, "run", "--quiet", "--servers", "2", "--", self, "memory", out}) == 0,
                   "the launcher failed");
    sizes_mb.add(value_in(out));
  }
  Line("server.rss_mb", sizes_mb, Better::kLess, "MB").at_most(20).print();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {  // as a worker: argv[1] says what to write, argv[2] where
    const double stamp_s = now_s();
    std::ofstream(argv[2]) << std::fixed << (std::string(argv[1]) == "stamp" ? stamp_s : largest_server_mb(2));
    return 0;
  }
  take_filter(argc, argv);
  char path[4096] = {};
  DOWNPOUR_CHECK(::readlink("/proc/self/exe", path, sizeof(path) - 1) > 0, "no /proc");
  const std::string out = std::string(path) + ".out";
  if (is_wanted("launcher.start_ms")) {
    start_figure(path, out);
  }
  if (is_wanted("server.rss_mb")) {
    memory_figure(path, out);
  }
  std::remove(out.c_str());
}
