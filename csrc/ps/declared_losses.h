#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace downpour::ps {

// Which of its pushes a worker has declared lost at a shard, so that each is counted once: a shard that is restored a second
// time from the same snapshot lacks the same ones again. Pure. Threads: one.
class DeclaredLosses {
 public:
  // Declares begin .. end - 1; how many of them had not been. What a worker holds only moves on, so `end` never falls.
  std::uint64_t declare(std::uint64_t begin, std::uint64_t end) {
    std::uint64_t fresh = end - begin;
    for (Run& run : runs_) {
      fresh -= run.end - std::clamp(begin, run.begin, run.end);
      run.end = std::clamp(begin, run.begin, run.end);
    }
    std::erase_if(runs_, [](const Run& run) { return run.begin == run.end; });
    runs_.push_back({begin, end});
    return fresh;
  }
  void forget_below(std::uint64_t sequence) {
    std::erase_if(runs_, [&](const Run& run) { return run.end <= sequence; });
  }

 private:
  struct Run {
    std::uint64_t begin = 0, end = 0;
  };
  std::vector<Run> runs_;
};

}  // namespace downpour::ps
