// How long the launcher takes to the first instruction of a worker, and how much memory a server without parameters needs.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/base/error.h"

extern char** environ;

namespace {

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = 0;
  DOWNPOUR_CHECK(::posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0, "cannot start ", words[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

double value_in(const std::string& path) {
  double value = 0;
  std::ifstream(path) >> value;
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

// In a worker: the largest of our siblings, which are the servers.
double largest_sibling_mb() {
  const std::string parent = std::to_string(::getppid());
  std::ifstream children("/proc/" + parent + "/task/" + parent + "/children");
  double largest = 0;
  for (int pid = 0; children >> pid;) {
    if (pid != ::getpid()) {
      largest = std::max(largest, resident_mb(pid));
    }
  }
  return largest;
}

void print(const char* name, double value, const char* unit, double goal) {
  std::printf("{\"name\":\"%s\",\"value\":%.2f,\"unit\":\"%s\",\"peer\":\"goal\",\"peer_value\":%.0f,\"ratio\":%.3f}\n", name,
              value, unit, goal, value / goal);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string self = "/proc/self/exe";
  if (argc == 3) {  // as a worker: argv[1] says what to write, argv[2] where
    std::ofstream(argv[2]) << std::fixed << (std::string(argv[1]) == "stamp" ? now_ms() : largest_sibling_mb());
    return 0;
  }
  char path[4096] = {};
  DOWNPOUR_CHECK(::readlink("/proc/self/exe", path, sizeof(path) - 1) > 0, "no /proc");
  const std::string out = std::string(path) + ".out";
  std::vector<double> starts;
  for (int i = 0; i < 21; ++i) {
    const double begin = now_ms();
    DOWNPOUR_CHECK(run({DOWNPOUR_PROGRAM, "run", "--quiet", "--", path, "stamp", out}) == 0, "the launcher failed");
    starts.push_back(value_in(out) - begin);
  }
  std::sort(starts.begin(), starts.end());
  print("launcher.start_ms", starts[starts.size() / 2], "ms", 50);
  DOWNPOUR_CHECK(run({DOWNPOUR_PROGRAM, "run", "--quiet", "--servers", "2", "--", path, "memory", out}) == 0, "the launcher failed");
  print("server.rss_mb", value_in(out), "MB", 20);
  std::remove(out.c_str());
}
