#pragma once

#include <optional>

#include "csrc/base/clock.h"
#include "csrc/ps/server.h"

namespace downpour::ps {

// When to take the next snapshot. Pure: time is handed in. Threads: one.
class SnapshotSchedule {
 public:
  SnapshotSchedule(const SnapshotOptions& options, TimePoint now)
      : interval_(options.interval), duty_(options.largest_duty), last_(now), earliest_(now) {}

  void changed() { dirty_ = true; }          // there is something that the last snapshot does not have
  void hurry() { dirty_ = urgent_ = true; }  // do not wait for the interval
  void demand() {                            // nor for the duty
    hurry();
    earliest_ = TimePoint::min();
  }
  void started(TimePoint now);
  void ended(TimePoint now, bool good);

  // When one is due; nullopt: not before something changes.
  std::optional<TimePoint> due() const;

 private:
  Duration interval_;
  double duty_;
  TimePoint last_;      // start of the last one
  TimePoint earliest_;  // before this the duty would be exceeded
  bool dirty_ = false;
  bool urgent_ = false;
};

}  // namespace downpour::ps
