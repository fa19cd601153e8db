#include "csrc/transport/loop.h"

#include <sys/epoll.h>
#include <sys/mman.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/transport/loop_fixtures.h"

namespace downpour::transport {
namespace {

using std::chrono::seconds;

TEST_F(LoopByHand, TimersFireWhenTheirTimeHasCome) {
  std::string log;
  loop.call_at(clock.now() + seconds(2), [&] { log += "b"; });
  loop.call_at(clock.now() + seconds(1), [&] { log += "a"; });
  const auto cancelled = loop.call_at(clock.now() + seconds(1), [&] { log += "x"; });
  loop.call_at(clock.now() + seconds(2), [&] { log += "c"; });
  loop.cancel(cancelled);
  loop.cancel(cancelled);
  EXPECT_FALSE(turn());
  clock.advance(seconds(1));
  EXPECT_TRUE(turn());
  EXPECT_EQ(log, "a");
  EXPECT_FALSE(turn());
  clock.advance(seconds(5));
  EXPECT_TRUE(turn());
  EXPECT_EQ(log, "abc");
}

TEST_F(LoopByHand, ATimerMayCancelAndSetOthersAndNeverStarvesTheRest) {
  std::string log;
  Loop::TimerId victim = 0;
  std::function<void()> again = [&] {
    log += "r";
    loop.cancel(victim);
    loop.call_at(clock.now(), again);  // due at once: in the next turn, not in this one
  };
  loop.call_at(clock.now(), again);
  victim = loop.call_at(clock.now(), [&] { log += "x"; });
  loop.post([&] { log += "p"; });
  EXPECT_TRUE(turn());
  EXPECT_TRUE(turn());
  EXPECT_EQ(log, "prr");
}

TEST_F(LoopByHand, WatchedDescriptorsAreHeardUntilUnwatched) {
  const Doorbell bell;
  int heard = 0;
  loop.watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t events) {
    EXPECT_EQ(events, static_cast<std::uint32_t>(EPOLLIN));
    bell.silence();
    ++heard;
  });
  EXPECT_FALSE(turn());
  bell.ring();
  EXPECT_TRUE(turn());
  EXPECT_FALSE(turn());
  EXPECT_EQ(heard, 1);
  loop.change(bell.fd.get(), 0);
  bell.ring();
  EXPECT_FALSE(turn());
  loop.change(bell.fd.get(), EPOLLIN);
  EXPECT_TRUE(turn());
  loop.unwatch(bell.fd.get());
  loop.unwatch(bell.fd.get());
  bell.ring();
  EXPECT_FALSE(turn());
  EXPECT_EQ(heard, 2);
}

TEST_F(LoopByHand, MistakesOfTheCallerAreErrors) {
  const Doorbell bell;
  EXPECT_THROW(loop.watch(-1, EPOLLIN, [](std::uint32_t) {}), Error);
  EXPECT_THROW(loop.change(bell.fd.get(), EPOLLIN), Error);
  loop.watch(bell.fd.get(), EPOLLIN, [](std::uint32_t) {});
  EXPECT_THROW(loop.watch(bell.fd.get(), EPOLLIN, [](std::uint32_t) {}), Error);
  const Fd file(::memfd_create("file", MFD_CLOEXEC));
  EXPECT_THROW(loop.watch(file.get(), EPOLLIN, [](std::uint32_t) {}), CommError) << "epoll takes no files";
  EXPECT_NO_THROW(loop.unwatch(file.get()));
}

// Both are ready in the same turn; the first one heard unwatches the other, and itself.
TEST_F(LoopByHand, ACallbackMayUnwatchAnything) {
  const Doorbell bells[2];
  int heard = 0;
  for (const auto& bell : bells) {
    bell.ring();
    loop.watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
      ++heard;
      for (const auto& each : bells) {
        loop.unwatch(each.fd.get());
      }
    });
  }
  EXPECT_TRUE(turn());
  EXPECT_FALSE(turn());
  EXPECT_EQ(heard, 1);
}

// A descriptor that is closed and handed out again within a turn is not taken for the old one.
TEST_F(LoopByHand, PendingEventsOfAnOldDescriptorDoNotReachANewOne) {
  Doorbell first;
  Doorbell second;
  int heard_by_new = 0;
  std::vector<Doorbell> reborn;
  const auto replace = [&](Doorbell& other) {
    const int number = other.fd.get();
    loop.unwatch(number);
    other.fd.reset();
    reborn.emplace_back();
    EXPECT_EQ(reborn.back().fd.get(), number);
    loop.watch(number, EPOLLIN, [&](std::uint32_t) { ++heard_by_new; });
  };
  loop.watch(first.fd.get(), EPOLLIN, [&](std::uint32_t) { loop.unwatch(first.fd.get()), replace(second); });
  loop.watch(second.fd.get(), EPOLLIN, [&](std::uint32_t) { loop.unwatch(second.fd.get()), replace(first); });
  first.ring();
  second.ring();
  EXPECT_TRUE(turn());
  EXPECT_EQ(reborn.size(), 1u);
  EXPECT_EQ(heard_by_new, 0);
}

TEST_F(LoopByHand, WhatIsPostedRunsInOrderAndLaterPostsInLaterTurns) {
  std::string log;
  loop.post([&] {
    log += "a";
    loop.post([&] { log += "c"; });
  });
  loop.post([&] { log += "b"; });
  EXPECT_TRUE(turn());
  EXPECT_EQ(log, "ab");
  EXPECT_TRUE(turn());
  EXPECT_EQ(log, "abc");
  EXPECT_FALSE(turn());
}

TEST_F(LoopByHand, AnExceptionLeavesThroughTheLoopAndLosesNothing) {
  std::string log;
  loop.post([&] { log += "a"; });
  loop.post([] { throw std::runtime_error("thrown"); });
  loop.post([&] { log += "b"; });
  loop.call_at(clock.now(), [] { throw std::runtime_error("thrown"); });
  loop.call_at(clock.now(), [&] { log += "t"; });
  int thrown = 0;
  for (int turns = 0; turns < 10; ++turns) {
    try {
      turn();
    } catch (const std::runtime_error&) {
      ++thrown;
    }
  }
  EXPECT_EQ(thrown, 2);
  EXPECT_EQ(log, "abt");
}

TEST_F(LoopByHand, ACallbackThatUnwatchesItselfEndsWhole) {
  const Doorbell bell;
  bell.ring();
  std::string log;
  loop.watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    log += "w";
    loop.unwatch(bell.fd.get());  // what it captured must outlive the turn
    loop.post([&] { log += "p"; });
    log += "e";
  });
  while (turn()) {
  }
  EXPECT_EQ(log, "wep");
}

// Sockets are heard before timers judge them, even when the loop was late for both.
TEST_F(LoopByHand, ADescriptorIsHeardBeforeATimerThatIsDue) {
  const Doorbell bell;
  std::string log;
  loop.watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    bell.silence();
    log += "w";
  });
  for (const bool also_posted : {false, true}) {
    log.clear();
    loop.call_at(clock.now() + seconds(1), [&] { log += "t"; });
    clock.advance(seconds(10));
    bell.ring();
    if (also_posted) {
      loop.post([&] { log += "p"; });
    }
    EXPECT_TRUE(turn());
    EXPECT_EQ(log, also_posted ? "pwt" : "wt");
  }
}

TEST_F(LoopByHand, PollersAreArmedOnlyForSleepAndLookedAtOnceMoreBefore) {
  CountingPoller poller;
  loop.add(poller);
  poller.work = 1;
  EXPECT_TRUE(turn());
  EXPECT_EQ(poller.arms, 0);
  poller.work_added_when_armed = 1;  // comes between the last look and the doorbell
  EXPECT_TRUE(loop.run_once(clock.now() + seconds(100)));
  EXPECT_EQ(poller.arms, 1);
  EXPECT_FALSE(poller.is_armed);
  EXPECT_FALSE(turn());
  loop.remove(poller);
  poller.polls = 0;
  EXPECT_FALSE(turn());
  EXPECT_EQ(poller.polls, 0);
}

TEST_F(LoopByHand, APollerMayRemoveItselfAndOthers) {
  CountingPoller pollers[3];
  for (auto& poller : pollers) {
    poller.work = 1;
    poller.when_polled = [&] {
      for (auto& each : pollers) {
        loop.remove(each);
      }
    };
    loop.add(poller);
  }
  EXPECT_TRUE(turn());
  EXPECT_EQ(pollers[0].polls + pollers[1].polls + pollers[2].polls, 1);
}

TEST_F(LoopByHand, ABusyPollerDoesNotKeepSocketsAndTimersWaiting) {
  CountingPoller poller;
  loop.add(poller);
  poller.work = 1'000'000;
  const Doorbell bell;
  int heard = 0;
  loop.watch(bell.fd.get(), EPOLLIN, [&](std::uint32_t) {
    bell.silence();
    ++heard;
  });
  bell.ring();
  bool fired = false;
  loop.call_at(clock.now(), [&] { fired = true; });
  for (int turns = 0; turns < 20; ++turns) {
    EXPECT_TRUE(turn());
  }
  EXPECT_EQ(heard, 1);
  EXPECT_TRUE(fired);
  loop.remove(poller);
}

}  // namespace
}  // namespace downpour::transport
