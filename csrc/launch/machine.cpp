#include "csrc/launch/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

namespace downpour::launch {
namespace {

std::optional<std::string> first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? std::optional(line) : std::nullopt;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The folder of our group under `controller` ("" for version 2), or nothing.
std::optional<std::filesystem::path> group_folder(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (names != "," + controller + "," &&
        (controller.empty() || names.find("," + controller + ",") == std::string::npos)) {
      continue;
    }
    const std::filesystem::path root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    const auto folder = root / line.substr(second + 2);
    // In a container the path is the one outside, while its group is mounted at the root.
    return std::filesystem::exists(folder) ? folder : root;
  }
  return std::nullopt;
}

std::optional<int> quota_cores() {
  if (const auto folder = group_folder("")) {
    if (const auto line = first_line(*folder / "cpu.max")) {
      return parse_cpu_quota(*line);
    }
  }
  const auto folder = group_folder("cpu");
  const auto quota = folder ? first_line(*folder / "cpu.cfs_quota_us") : std::nullopt;
  const auto period = folder ? first_line(*folder / "cpu.cfs_period_us") : std::nullopt;
  return quota && period ? parse_cpu_quota(*quota + " " + *period) : std::nullopt;
}

// The value of "key 123" in a file of such lines.
std::optional<std::int64_t> keyed_number(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string name, value; file >> name >> value;) {
    if (name == key) {
      return number(value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::optional<int> parse_cpu_quota(const std::string& text) {
  std::istringstream words(text);
  std::string quota_text;
  std::int64_t period = 0;
  words >> quota_text >> period;
  const auto quota = number(quota_text);
  if (!quota || *quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return static_cast<int>((*quota + period - 1) / period);
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                             : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(std::min(cores, quota_cores().value_or(cores)), 1);
}

std::optional<MemoryGroup> read_memory_group(const std::filesystem::path& folder) {
  MemoryGroup group;
  const auto events = keyed_number(folder / "memory.events", "oom_kill");
  const auto old_events = keyed_number(folder / "memory.oom_control", "oom_kill");
  const auto limit = first_line(folder / "memory.max");
  const auto old_limit = first_line(folder / "memory.limit_in_bytes");
  if (!events && !old_events && !limit && !old_limit) {
    return std::nullopt;
  }
  group.out_of_memory_kills = events.value_or(old_events.value_or(0));
  group.limit_bytes = number(limit.value_or(old_limit.value_or("max")));
  // Version 1 writes "no limit" as the largest multiple of a page.
  if (group.limit_bytes && *group.limit_bytes > (1ll << 62)) {
    group.limit_bytes.reset();
  }
  return group;
}

std::optional<MemoryGroup> memory_group() {
  for (const char* controller : {"", "memory"}) {
    if (const auto folder = group_folder(controller)) {
      if (const auto group = read_memory_group(*folder)) {
        return group;
      }
    }
  }
  return std::nullopt;
}

}  // namespace downpour::launch
