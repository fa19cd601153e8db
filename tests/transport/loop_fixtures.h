#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <functional>

#include "csrc/base/fd.h"
#include "csrc/transport/loop.h"

namespace downpour::transport {

struct Doorbell {
  Doorbell() : fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void ring() const { EXPECT_EQ(::eventfd_write(fd.get(), 1), 0); }
  void silence() const {
    eventfd_t count = 0;
    ::eventfd_read(fd.get(), &count);
  }
  Fd fd;
};

// Time that the test advances; run_once(now) never sleeps.
struct LoopByHand : testing::Test {
  bool turn() { return loop.run_once(clock.now()); }
  ManualClock clock;
  Loop loop{clock};
};

struct LoopInTime : testing::Test {
  bool until(const std::function<bool()>& done) {
    return loop.run_until(done, clock.now() + std::chrono::seconds(120));
  }
  SteadyClock clock;
  Loop loop{clock};
};

// Has as much to do as the test says.
class CountingPoller final : public Poller {
 public:
  bool poll() override {
    ++polls;
    const bool had = work > 0;
    work -= had ? 1 : 0;
    if (had && when_polled) {
      when_polled();
    }
    return had;
  }
  void arm() override {
    ++arms;
    is_armed = true;
    work += work_added_when_armed;
    work_added_when_armed = 0;
  }
  void disarm() override { is_armed = false; }

  int polls = 0;
  int arms = 0;
  int work = 0;
  int work_added_when_armed = 0;
  bool is_armed = false;
  std::function<void()> when_polled;
};

}  // namespace downpour::transport
