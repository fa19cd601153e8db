#pragma once

#include <algorithm>
#include <utility>

#include "csrc/base/clock.h"

namespace downpour {

// For whoever looks again and again whether others are silent: a look that comes far too late shows that this process itself
// stood still (was stopped, or its whole machine), and must not blame others for the time it missed.
// Threads: one.
class OwnStall {
 public:
  // `interval`: how often it looks; `silence`: what others are given.
  OwnStall(Duration interval, Duration silence, TimePoint now)
      : tolerance_(std::max<Duration>(silence / 10, 2 * interval)), looked_(now) {}

  // The time to forgive at this look: that since the last one, or zero where it comes about when it should.
  Duration look(TimePoint now) {
    const Duration gap = now - std::exchange(looked_, now);
    return gap > tolerance_ ? gap : Duration::zero();
  }

 private:
  Duration tolerance_;
  TimePoint looked_;
};

}  // namespace downpour
