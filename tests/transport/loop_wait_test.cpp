// How a loop waits, in real time: deadlines, spinning, other threads, signals.
#include <sys/epoll.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "tests/support/allocations.h"
#include "tests/transport/loop_fixtures.h"

namespace downpour::transport {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(LoopInTime, ADeadlineEndsTheWait) {
  const TimePoint start = clock.now();
  EXPECT_FALSE(loop.run_once(start + milliseconds(20)));
  EXPECT_GE(clock.now() - start, milliseconds(20));
  EXPECT_LT(clock.now() - start, seconds(60));
  EXPECT_FALSE(loop.run_until([] { return false; }, clock.now() + milliseconds(5)));
  EXPECT_TRUE(loop.run_until([] { return true; }, clock.now() - seconds(5)));
}

TEST_F(LoopInTime, ATimerEndsTheWaitAndIsNeverEarly) {
  const TimePoint when = clock.now() + microseconds(1500);
  TimePoint fired{};
  loop.call_at(when, [&] { fired = clock.now(); });
  EXPECT_TRUE(until([&] { return fired != TimePoint{}; }));
  EXPECT_GE(fired, when);
}

TEST_F(LoopInTime, WithoutSpinTheWaitCostsNoProcessorTime) {
  CountingPoller poller;
  loop.add(poller);
  timespec before{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_FALSE(loop.run_once(clock.now() + milliseconds(200)));
  timespec after{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const double used =
      static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 0.1);
  EXPECT_LE(poller.polls, 4);
  loop.remove(poller);
}

TEST_F(LoopInTime, WithSpinPollersAreLookedAtBeforeSleep) {
  CountingPoller poller;
  loop.add(poller);
  EXPECT_FALSE(loop.run_once(clock.now() + milliseconds(20), milliseconds(5)));
  EXPECT_GT(poller.polls, 10);
  EXPECT_EQ(poller.arms, 1);
  const TimePoint soon = clock.now() + milliseconds(2);
  bool fired = false;
  loop.call_at(soon, [&] { fired = true; });
  EXPECT_TRUE(until([&] { return fired; }));
  loop.remove(poller);
}

TEST_F(LoopInTime, AnyThreadMayPostAndWake) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 5000;
  std::vector<std::vector<int>> ran(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread, &ran] {
      for (int i = 0; i < kPosts; ++i) {
        loop.post([&ran, thread, i] { ran[static_cast<std::size_t>(thread)].push_back(i); });
        if (i % 7 == 0) {
          loop.wake();
        }
      }
    });
  }
  EXPECT_TRUE(until([&] { return std::ranges::all_of(ran, [](const auto& one) { return one.size() == kPosts; }); }));
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& one : ran) {
    EXPECT_TRUE(std::ranges::is_sorted(one));
  }
}

TEST_F(LoopInTime, AWakeEndsASleep) {
  std::atomic<bool> stop = false;
  std::thread waker([&] {
    stop = true;
    loop.wake();
  });
  EXPECT_TRUE(until([&] { return stop.load(); }));
  waker.join();
  loop.wake();
  EXPECT_TRUE(loop.run_once(clock.now() + seconds(100))) << "a wake before the wait counts";
}

TEST_F(LoopInTime, ASignalEndsASleep) {
  struct sigaction act {};
  struct sigaction old {};
  act.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &act, &old), 0);
  const itimerval soon{{0, 0}, {0, 10'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
  EXPECT_TRUE(loop.run_once(clock.now() + seconds(100)));
  ::sigaction(SIGALRM, &old, nullptr);
}

TEST_F(LoopByHand, ACallbackThatRunsItsOwnLoopIsABug) {
  int later = 0;
  loop.post([&] { EXPECT_THROW(turn(), InternalError); });
  loop.post([&] { ++later; });
  EXPECT_TRUE(turn());
  EXPECT_EQ(later, 1);
  EXPECT_FALSE(turn());
}

// A stop ends as a signal does, and both a socket and a timer may be due by then.
TEST_F(LoopByHand, AfterASignalSocketsComeBeforeTimers) {
  static ManualClock* stopped_clock = nullptr;
  static const Doorbell* bell = nullptr;
  const Doorbell doorbell;
  stopped_clock = &clock;
  bell = &doorbell;
  std::string order;
  loop.watch(doorbell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    doorbell.silence();
    order += "socket ";
  });
  loop.call_at(clock.now() + seconds(100), [&] { order += "timer "; });
  struct sigaction act {};
  struct sigaction old {};
  act.sa_handler = [](int) {
    bell->ring();
    stopped_clock->advance(seconds(200));
  };
  ASSERT_EQ(::sigaction(SIGALRM, &act, &old), 0);
  const itimerval soon{{0, 0}, {0, 10'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
  EXPECT_TRUE(loop.run_once(clock.now() + seconds(100)));
  ::sigaction(SIGALRM, &old, nullptr);
  EXPECT_EQ(order, "socket timer ");
}

TEST_F(LoopInTime, PingPongsAllocateNothing) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  const Doorbell bells[2];
  int left = 100;
  for (const int i : {0, 1}) {
    loop.watch(bells[i].fd.get(), EPOLLIN, [&, i](std::uint32_t) {
      bells[i].silence();
      --left;
      bells[1 - i].ring();
    });
  }
  bells[0].ring();
  const auto run = [&](int times) {
    left = times;
    while (left > 0) {
      loop.run_once(clock.now() + seconds(100));
    }
  };
  run(100);
  const std::uint64_t before = allocations();
  run(1000);
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace downpour::transport
