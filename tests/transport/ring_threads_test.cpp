#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "csrc/base/fd.h"
#include "csrc/base/random.h"
#include "tests/transport/ring_ends.h"

// Two threads: no wake-up is lost, no byte is read before it was written.
namespace downpour::transport {
namespace {

constexpr int kLongestWaitMs = 120'000;

// false when nobody rang in time.
bool wait_for(int doorbell) {
  pollfd wait{doorbell, POLLIN, 0};
  eventfd_t count = 0;
  return poll(&wait, 1, kLongestWaitMs) == 1 && eventfd_read(doorbell, &count) == 0;
}

// Looks until it is so; false when it is not so in time. Yields for machines with one processor.
template <typename Condition>
bool look_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLongestWaitMs);
  for (int looks = 1; !condition(); ++looks) {
    if (looks % 1000 == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

// Of both ends: more than it takes a write to reach the other processor, so that each comes first at times.
constexpr std::uint64_t kJitter = 400;

void idle_for(std::uint64_t steps) {
  for (std::uint64_t i = 0; i < steps; ++i) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

// A doorbell that is looked at, so that both ends stay on their processors and meet as closely as can be.
struct Bell {
  void ring() { ++rings; }
  bool heard() {
    return look_until([&] { return rings.exchange(0) > 0; });
  }
  std::atomic<int> rings{0};
};

// One direction only, so that no other ring can wake the sleeper by luck; each frame strikes at another moment around the flag.
TEST(RingWaking, AConsumerThatFallsAsleepMissesNoFrame) {
  constexpr std::uint64_t kFrames = 200'000;
  Ring ring(1024);
  Bell bell;
  std::atomic<std::uint64_t> received{0};
  std::atomic<bool> stuck{false};
  std::thread consumer([&] {
    Random random(3);
    while (received < kFrames && !stuck) {
      if (ring.consumer.pop()) {
        ++received;
        idle_for(random.below(kJitter));
        continue;
      }
      ring.consumer.sleep();
      stuck = ring.consumer.empty() && !bell.heard();
      ring.consumer.awake();
    }
  });
  Random random(1);
  for (std::uint64_t number = 0; number < kFrames && !stuck; ++number) {
    push(ring.producer, number, 0);
    if (ring.producer.consumer_sleeps()) {
      bell.ring();
    }
    look_until([&] { return received > number || stuck; });
    idle_for(random.below(kJitter));
  }
  consumer.join();
  EXPECT_FALSE(stuck) << "after " << received << " frames";
}

TEST(RingWaking, AProducerThatWaitsMissesNoRoom) {
  constexpr std::uint64_t kFrames = 200'000;
  Ring ring(64);  // room for one frame of 64 bytes
  Bell bell;
  std::atomic<std::uint64_t> pushed{0};
  std::atomic<bool> stuck{false};
  std::thread producer([&] {
    Random random(3);
    while (pushed < kFrames && !stuck) {
      if (push(ring.producer, pushed, 24)) {
        ++pushed;
        idle_for(random.below(kJitter));
      } else {
        stuck = !bell.heard();
      }
    }
  });
  Random random(2);
  for (std::uint64_t number = 0; number < kFrames && !stuck; ++number) {
    look_until([&] { return pushed > number || stuck; });
    idle_for(random.below(kJitter));
    ring.consumer.pop();
    if (ring.consumer.producer_waits()) {
      bell.ring();
    }
  }
  producer.join();
  EXPECT_FALSE(stuck) << "after " << pushed << " frames";
}

// One end of two rings and its doorbells, used as a connection uses them.
struct End {
  RingProducer out;
  RingConsumer in;
  int sleeps_on;
  int rings;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t slept = 0;
  bool stuck = false;

  void ring() const { ASSERT_EQ(eventfd_write(rings, 1), 0); }

  void block() {
    ++slept;
    stuck = !wait_for(sleeps_on);
  }

  std::size_t bytes_of(std::uint64_t number) const { return (number * 2654435761u >> 7) % 33; }

  bool send(std::uint64_t messages) {
    const std::uint64_t before = sent;
    for (int batch = 0; batch < 8 && sent < messages && push(out, sent, bytes_of(sent)); ++batch) {
      ++sent;
    }
    if (out.consumer_sleeps()) {
      ring();
    }
    return sent != before;
  }

  bool receive() {
    const std::uint64_t before = received;
    while (const auto item = in.pop()) {
      expect_item(item, received, bytes_of(received));
      ++received;
    }
    if (in.producer_waits()) {
      ring();
    }
    return received != before;
  }

  void run(std::uint64_t messages) {
    while ((sent < messages || received < messages) && !stuck && !testing::Test::HasFailure()) {
      const bool sent_some = send(messages);
      if (receive() || sent_some) {
        continue;
      }
      in.sleep();
      if (in.empty()) {
        block();
      }
      in.awake();
    }
  }
};

// Both directions at once, always on the edge of empty and full.
void stress(std::size_t ring_bytes, std::uint64_t messages) {
  Memory there(ring_bytes), back(ring_bytes);
  const Fd bell_a(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), bell_b(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  End a{.out = {there.control_bytes(), there.ring},
        .in = {back.control_bytes(), back.ring, {}},
        .sleeps_on = bell_a.get(),
        .rings = bell_b.get()};
  End b{.out = {back.control_bytes(), back.ring},
        .in = {there.control_bytes(), there.ring, {}},
        .sleeps_on = bell_b.get(),
        .rings = bell_a.get()};
  std::thread other([&] { b.run(messages); });
  a.run(messages);
  other.join();
  EXPECT_FALSE(a.stuck || b.stuck) << "a wake-up was lost";
  EXPECT_EQ(a.received, messages);
  EXPECT_EQ(b.received, messages);
  EXPECT_GT(a.slept + b.slept, 0u);
}

TEST(RingStress, AMillionFramesEachWayThroughATinyRing) { stress(128, 1'000'000); }
TEST(RingStress, AMillionFramesEachWay) { stress(4096, 1'000'000); }
TEST(RingStress, FramesLongerThanTheRing) { stress(64, 200'000); }

}  // namespace
}  // namespace downpour::transport
