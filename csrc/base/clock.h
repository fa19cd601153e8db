#pragma once

#include <chrono>

// Time as the core sees it: monotonic, and handed in, so that tests turn it by hand.
namespace downpour {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Threads: now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// A clock that stands still until the test advances it. Threads: one.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

// A deadline that never comes: a year, which can still be added to a time point and counted in milliseconds.
inline constexpr Duration kNever = std::chrono::hours(24 * 365);

// A duration in seconds, for messages.
inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace downpour
