#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "csrc/base/clock.h"

namespace downpour::transport {

// Callbacks in the order of their times; equal times in the order of their making. A binary heap that keeps its memory.
// Threads: one.
class Timers {
 public:
  using Callback = std::function<void()>;

  std::uint64_t add(TimePoint when, Callback callback);
  void cancel(std::uint64_t id);  // unknown or taken: no effect
  std::optional<TimePoint> next() const;
  std::uint64_t newest() const { return newest_; }
  // Takes out the first one due at `now`, of those made no later than `newest`: callbacks that set one which is due at once
  // do not keep a loop from its other work.
  Callback take_due(TimePoint now, std::uint64_t newest);

 private:
  struct Timer {
    TimePoint when;
    std::uint64_t id;
    Callback callback;
  };
  static bool later(const Timer& a, const Timer& b);

  std::vector<Timer> heap_;
  std::uint64_t newest_ = 0;
};

}  // namespace downpour::transport
