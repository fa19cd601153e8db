#pragma once

#include <cstdint>
#include <string>
#include <vector>

// LibTorch on a CPU frees activations above glibc's mmap threshold to the kernel and faults them in again at every step: a small
// CNN loses about 15 % of its time to that. These settings keep the memory in the process.
namespace downpour {

constexpr std::int64_t kMallocMmapThresholdBytes = 1ll << 30;
constexpr std::int64_t kMallocTrimThresholdBytes = 4ll << 30;
constexpr std::int64_t kMallocTopPadBytes = 64ll << 20;

// For a program not started by the launcher: call it before the first tensor is made. Settings that the user gave through
// MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_ or GLIBC_TUNABLES win. No effect under other allocators.
// The price: the process keeps what it once used (its peak) until it ends.
// Threads: call it before others run; it reads the environment.
void keep_freed_memory();

// The same as environment variables for a child process, without those that `present` (name=value) already sets.
std::vector<std::string> malloc_variables(const std::vector<std::string>& present);

}  // namespace downpour
