#include "csrc/transport/heartbeat.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace downpour::transport {

Heartbeat::Heartbeat(Loop& loop, const Limits& limits, std::string peer, std::function<void()> beat, Lost lost)
    : loop_(loop),
      limits_(limits),
      peer_(std::move(peer)),
      beat_(std::move(beat)),
      lost_(std::move(lost)),
      stall_(limits.interval, limits.silence, loop.now()),
      last_heard_(loop.now()) {
  DOWNPOUR_CHECK(limits.interval > Duration::zero() && limits.silence > limits.interval, "heartbeat with ", peer_,
                 ": expected 0 < interval < silence, found ", seconds(limits.interval), " s and ",
                 seconds(limits.silence), " s");
  schedule();
}

Heartbeat::~Heartbeat() { loop_.cancel(timer_); }

void Heartbeat::heard(TimePoint when) {
  last_heard_ = when;
  warned_ = false;
}

void Heartbeat::schedule() {
  timer_ = loop_.call_at(loop_.now() + limits_.interval, [this] { tick(); });
}

void Heartbeat::tick() {
  schedule();
  beat_();
  const TimePoint now = loop_.now();
  last_heard_ = std::min(last_heard_ + stall_.look(now), now);
  const Duration silent_for = now - last_heard_;
  if (silent_for >= limits_.warn_after && !std::exchange(warned_, true)) {
    log_warning(peer_, " has not been heard for ", seconds(silent_for), " s; it is given up after ",
                seconds(limits_.silence), " s");
  }
  if (silent_for >= limits_.silence) {
    const Lost lost = lost_;  // `this` may be gone before it returns
    lost(silent_for);
  }
}

}  // namespace downpour::transport
