#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

// What the machine, and the control group that we run in, give to a job. Errors: none; what cannot be read is left out.
namespace downpour::launch {

std::string host_name();

// Cores that this process may use at once: its affinity mask, cut down to the control group's quota (rounded up).
int usable_cores();

struct MemoryGroup {
  std::optional<std::int64_t> limit_bytes;  // nullopt: none
  std::int64_t out_of_memory_kills = 0;     // so far
};
// Of our control group (version 2, or the memory controller of version 1); nullopt where there is none to read.
std::optional<MemoryGroup> memory_group();

// Of a control group's folder, for tests.
std::optional<MemoryGroup> read_memory_group(const std::filesystem::path& folder);
// "max 100000" or "150000 100000" (quota and period in microseconds): cores, rounded up; nullopt: no limit.
std::optional<int> parse_cpu_quota(const std::string& text);

}  // namespace downpour::launch
