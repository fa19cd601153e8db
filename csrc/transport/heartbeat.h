#pragma once

#include <functional>
#include <string>

#include "csrc/base/own_stall.h"
#include "csrc/transport/loop.h"

namespace downpour::transport {

// One end's proof of life and its ear for the other's. Time for which this process stood still is nobody's silence.
// Threads: its loop's.
class Heartbeat {
 public:
  struct Limits {
    Duration interval{};    // > 0; also how often silence is looked at
    Duration warn_after{};  // logged once per silence
    Duration silence{};
  };
  // `beat` and `lost` are called from the loop's timers, the one every interval, the other once; `lost` may destroy this.
  using Lost = std::function<void(Duration silent_for)>;
  Heartbeat(Loop& loop, const Limits& limits, std::string peer, std::function<void()> beat, Lost lost);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void heard(TimePoint when);

 private:
  void schedule();
  void tick();

  Loop& loop_;
  Limits limits_;
  std::string peer_;
  std::function<void()> beat_;
  Lost lost_;
  OwnStall stall_;
  TimePoint last_heard_;
  bool warned_ = false;
  Loop::TimerId timer_ = 0;
};

}  // namespace downpour::transport
