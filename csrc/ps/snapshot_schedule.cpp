#include "csrc/ps/snapshot_schedule.h"

#include <algorithm>

namespace downpour::ps {

void SnapshotSchedule::started(TimePoint now) {
  last_ = now;
  dirty_ = urgent_ = false;
}

void SnapshotSchedule::ended(TimePoint now, bool good) {
  const auto taken = std::chrono::duration<double>(now - last_);
  const auto rest = duty_ > 0 && duty_ < 1 ? taken * (1 / duty_ - 1) : std::chrono::duration<double>::zero();
  // A request that came meanwhile has waived the duty for its own sake.
  if (earliest_ != TimePoint::min() || !urgent_) {
    earliest_ = now + std::chrono::duration_cast<Duration>(rest);
  }
  dirty_ |= !good;
}

std::optional<TimePoint> SnapshotSchedule::due() const {
  if (!dirty_) {
    return std::nullopt;
  }
  return urgent_ ? earliest_ : std::max(earliest_, last_ + interval_);
}

}  // namespace downpour::ps
