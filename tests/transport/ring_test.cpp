#include "csrc/transport/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <limits>

#include "csrc/base/random.h"
#include "tests/transport/ring_ends.h"

namespace downpour::transport {
namespace {

TEST(Ring, IsEmptyAtFirst) {
  Ring ring(64);
  EXPECT_TRUE(ring.consumer.empty());
  EXPECT_FALSE(ring.consumer.pop().has_value());
  EXPECT_FALSE(ring.consumer.producer_waits());
  EXPECT_FALSE(ring.producer.consumer_sleeps());
}

TEST(Ring, CarriesEveryFieldOfTheHeader) {
  Ring ring(256, {.window_bytes = 1000});
  const FrameHeader header{.type = 99, .takes_credit = 1, .body_bytes = 2, .bulk_bytes = 300, .bulk_offset = 700};
  ASSERT_TRUE(ring.producer.push(header, body_of(1, 2)));
  EXPECT_FALSE(ring.consumer.empty());
  const auto item = ring.consumer.pop();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(item->header, header);
  EXPECT_TRUE(ring.consumer.empty());
}

TEST(Ring, WrapsAtEveryOffset) {
  for (const std::size_t ring_bytes : {64u, 128u, 1024u}) {
    Ring ring(ring_bytes);
    for (std::uint64_t number = 0; number < 500; ++number) {
      const std::size_t bytes = number % (ring_bytes - kFrameHeaderBytes + 1);
      ASSERT_TRUE(push(ring.producer, number, bytes));
      expect_item(ring.consumer.pop(), number, bytes);
    }
  }
}

TEST(Ring, AFrameLongerThanTheRingGoesThroughInPieces) {
  Ring ring(64);
  const std::size_t bytes = 1000;
  int pieces = 0;
  while (!push(ring.producer, 5, bytes)) {
    ++pieces;
    ASSERT_LT(pieces, 100);
    EXPECT_FALSE(ring.consumer.pop().has_value());
    EXPECT_TRUE(ring.consumer.producer_waits());
  }
  EXPECT_GE(pieces, 15);
  expect_item(ring.consumer.pop(), 5, bytes);
}

TEST(Ring, AFullRingIsReportedOnceToTheConsumer) {
  Ring ring(128);
  ASSERT_TRUE(push(ring.producer, 0, 24));
  ASSERT_TRUE(push(ring.producer, 1, 24));
  ASSERT_FALSE(push(ring.producer, 2, 24));
  EXPECT_FALSE(ring.consumer.producer_waits()) << "no room was made yet";
  expect_item(ring.consumer.pop(), 0, 24);
  EXPECT_TRUE(ring.consumer.producer_waits());
  EXPECT_FALSE(ring.consumer.producer_waits());
  ASSERT_TRUE(push(ring.producer, 2, 24));
  expect_item(ring.consumer.pop(), 1, 24);
  EXPECT_FALSE(ring.consumer.producer_waits()) << "the producer found its room";
  expect_item(ring.consumer.pop(), 2, 24);
}

TEST(Ring, ASleepingConsumerIsRungOnce) {
  Ring ring(1024);
  ASSERT_TRUE(push(ring.producer, 0, 0));
  EXPECT_FALSE(ring.producer.consumer_sleeps()) << "awake";
  ring.consumer.sleep();
  EXPECT_FALSE(ring.producer.consumer_sleeps()) << "nothing was added since";
  ASSERT_TRUE(push(ring.producer, 1, 0));
  EXPECT_TRUE(ring.producer.consumer_sleeps());
  ASSERT_TRUE(push(ring.producer, 2, 0));
  EXPECT_FALSE(ring.producer.consumer_sleeps());
  ring.consumer.sleep();
  ring.consumer.awake();
  ASSERT_TRUE(push(ring.producer, 3, 0));
  EXPECT_FALSE(ring.producer.consumer_sleeps());
}

TEST(Ring, AnyInterleavingKeepsTheOrder) {
  for (const std::size_t ring_bytes : {64u, 256u, 4096u}) {
    Ring ring(ring_bytes);
    Random random(ring_bytes);
    std::deque<std::pair<std::uint64_t, std::size_t>> waiting;
    std::uint64_t number = 0;
    std::size_t bytes = random.below(200);
    for (int step = 0; step < 20'000; ++step) {
      if (random.below(2) == 0) {
        if (waiting.empty() || waiting.back().first != number) {
          waiting.emplace_back(number, bytes);  // from its first piece on
        }
        if (push(ring.producer, number, bytes)) {
          ++number;
          bytes = random.below(200);
        }
      } else if (const auto item = ring.consumer.pop()) {
        ASSERT_FALSE(waiting.empty());
        expect_item(item, waiting.front().first, waiting.front().second);
        waiting.pop_front();
      }
    }
    EXPECT_GT(number, 1000u);
  }
}

TEST(Ring, WhatWasPoppedIsACopy) {
  Ring ring(256);
  ASSERT_TRUE(push(ring.producer, 3, 100));
  const auto item = ring.consumer.pop();
  std::fill(ring.ring.begin(), ring.ring.end(), std::byte{0xff});
  expect_item(item, 3, 100);
}

TEST(Ring, TheSizesAreChecked) {
  Memory memory(128);
  const MutableBytes ring = memory.ring;
  EXPECT_THROW(RingProducer(memory.control_bytes().first(504), ring), Error);
  EXPECT_THROW(RingProducer(memory.control_bytes(), ring.first(100)), Error);
  EXPECT_THROW(RingConsumer(memory.control_bytes(), ring.first(32), {}), Error);
  EXPECT_THROW(RingConsumer(memory.control_bytes(), {}, {}), Error);
}

// ---- a peer that lies --------------------------------------------------------------------------

TEST(HostileProducer, ImpossibleIndicesEndIt) {
  for (const std::uint64_t tail : {std::uint64_t{44}, std::uint64_t{44 + 257}, std::uint64_t{1} << 63,
                                   std::numeric_limits<std::uint64_t>::max(), std::uint64_t{0}}) {
    Ring ring(256);
    ASSERT_TRUE(push(ring.producer, 0, 5));
    expect_item(ring.consumer.pop(), 0, 5);
    ring.set(kTail, tail);
    EXPECT_FALSE(ring.consumer.empty()) << "so that pop() finds it";
    EXPECT_THROW(ring.consumer.pop(), ProtocolError) << tail;
  }
}

TEST(HostileProducer, AnIndexThatGoesBackBehindWhatWasSeenEndsIt) {
  Ring ring(256);
  ASSERT_TRUE(push(ring.producer, 0, 0));
  ASSERT_TRUE(push(ring.producer, 1, 10));
  expect_item(ring.consumer.pop(), 0, 0);
  ring.set(kTail, 60);
  ring.ring[kFrameHeaderBytes] ^= std::byte{1};
  EXPECT_THROW(ring.consumer.pop(), ProtocolError);
  EXPECT_THROW(ring.consumer.pop(), ProtocolError) << "and it stays that way";
}

TEST(HostileProducer, AHeaderThatIsNoneEndsIt) {
  for (std::size_t at = 0; at < kFrameHeaderBytes; ++at) {
    Ring ring(256);
    ASSERT_TRUE(push(ring.producer, 0, 9));
    ring.ring[at] ^= std::byte{0x40};
    EXPECT_THROW(ring.consumer.pop(), ProtocolError) << "byte " << at;
    EXPECT_THROW(ring.consumer.pop(), ProtocolError) << "byte " << at;
  }
}

TEST(HostileProducer, LengthsBeyondTheLimitsEndIt) {
  const FrameLimits limits{.body_bytes = 16, .window_bytes = 100};
  const std::vector<FrameHeader> wrong = {
      {.type = 64, .body_bytes = 17},
      {.type = 64, .body_bytes = std::numeric_limits<std::uint32_t>::max()},
      {.type = 64, .bulk_bytes = 101},
      {.type = 64, .bulk_bytes = 1, .bulk_offset = 100},
      {.type = 64, .bulk_bytes = 2, .bulk_offset = std::numeric_limits<std::uint64_t>::max()},
      {.type = 64, .bulk_bytes = std::numeric_limits<std::uint64_t>::max(), .bulk_offset = 1},
  };
  for (const FrameHeader& header : wrong) {
    Ring ring(256, limits);
    encode_header(header, std::span(ring.ring).first<kFrameHeaderBytes>());
    ring.set(kTail, kFrameHeaderBytes);
    EXPECT_THROW(ring.consumer.pop(), ProtocolError);
  }
}

TEST(HostileProducer, FlagsAreOnlyHints) {
  Ring ring(256);
  ASSERT_TRUE(push(ring.producer, 0, 1));
  ring.set(kWaits, 0xdeadbeef);
  expect_item(ring.consumer.pop(), 0, 1);
  EXPECT_TRUE(ring.consumer.producer_waits());
  EXPECT_EQ(ring.get(kWaits), 0u);
}

TEST(HostileConsumer, ImpossibleIndicesEndIt) {
  for (const std::uint64_t head :
       {std::uint64_t{41}, std::uint64_t{128}, std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
    Ring ring(64);
    ASSERT_TRUE(push(ring.producer, 0, 0));
    ring.set(kHead, head);
    EXPECT_THROW(push(ring.producer, 1, 0), ProtocolError) << head;
  }
}

TEST(HostileConsumer, AnIndexThatGoesBackEndsIt) {
  Ring ring(64);
  ASSERT_TRUE(push(ring.producer, 0, 0));
  ring.set(kHead, 40);
  ASSERT_TRUE(push(ring.producer, 1, 0));
  ring.set(kHead, 39);
  EXPECT_THROW(push(ring.producer, 2, 0), ProtocolError);
}

TEST(HostileConsumer, FlagsAreOnlyHints) {
  Ring ring(256);
  ring.set(kSleeps, std::numeric_limits<std::uint64_t>::max());
  ASSERT_TRUE(push(ring.producer, 0, 1));
  EXPECT_TRUE(ring.producer.consumer_sleeps());
  EXPECT_EQ(ring.get(kSleeps), 0u);
}

// Every word and byte scribbled over at random between the steps: either the frame is good or it is a ProtocolError.
TEST(HostilePeer, RandomScribblesEndInProtocolErrorsOnly) {
  Random random(20);
  int ended = 0;
  for (int round = 0; round < 20'000; ++round) {
    Ring ring(std::size_t{64} << random.below(4), {.body_bytes = 300, .window_bytes = 50});
    std::size_t bytes = random.below(90);
    try {
      for (int step = 0; step < 12; ++step) {
        bytes = push(ring.producer, bytes, bytes) ? random.below(90) : bytes;
        if (random.below(3) == 0) {
          ring.set(8 * random.below(kRingControlBytes / 8), random.below(2) ? random.next() : random.below(600));
          ring.set(random.below(2) ? kTail : kHead, random.below(300));
        }
        ring.ring[random.below(ring.ring.size())] = static_cast<std::byte>(random.next());
        if (const auto item = ring.consumer.pop()) {
          ASSERT_LE(item->body.size(), 300u);
        }
        ring.producer.consumer_sleeps();
        ring.consumer.producer_waits();
      }
    } catch (const ProtocolError&) {
      ++ended;
    }
  }
  EXPECT_GT(ended, 1000);
}

}  // namespace
}  // namespace downpour::transport
