#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "csrc/transport/ring.h"

// A ring in ordinary memory with both its ends, and frames that their numbers decide.
namespace downpour::transport {

// Where the words lie; ring.cpp and the test agree so that the test can play a peer that lies.
constexpr std::size_t kTail = 0;
constexpr std::size_t kHead = 128;
constexpr std::size_t kSleeps = 256;
constexpr std::size_t kWaits = 384;

// Exactly as many bytes as the ring may touch, so that a sanitizer sees one too many.
struct Memory {
  explicit Memory(std::size_t ring_bytes) : control(kRingControlBytes / 8), ring(ring_bytes) {}
  MutableBytes control_bytes() { return std::as_writable_bytes(std::span(control)); }
  void set(std::size_t at, std::uint64_t value) { control[at / 8] = value; }
  std::uint64_t get(std::size_t at) const { return control[at / 8]; }

  std::vector<std::uint64_t> control;
  std::vector<std::byte> ring;
};

struct Ring : Memory {
  explicit Ring(std::size_t ring_bytes, const FrameLimits& limits = {})
      : Memory(ring_bytes), producer(control_bytes(), ring), consumer(control_bytes(), ring, limits) {}
  RingProducer producer;
  RingConsumer consumer;
};

// A body that its number and size decide.
inline std::vector<std::byte> body_of(std::uint64_t number, std::size_t bytes) {
  std::vector<std::byte> body(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    body[i] = static_cast<std::byte>(number * 31 + i);
  }
  return body;
}

inline FrameHeader header_of(std::uint16_t type, std::size_t body_bytes) {
  FrameHeader header;
  header.type = type;
  header.body_bytes = static_cast<std::uint32_t>(body_bytes);
  return header;
}

inline bool push(RingProducer& producer, std::uint64_t number, std::size_t bytes) {
  return producer.push(header_of(static_cast<std::uint16_t>(kFirstUserType + number % 1000), bytes),
                       body_of(number, bytes));
}

inline void expect_item(const std::optional<RingConsumer::Item>& item, std::uint64_t number, std::size_t bytes) {
  ASSERT_TRUE(item.has_value());
  ASSERT_EQ(item->header, header_of(static_cast<std::uint16_t>(kFirstUserType + number % 1000), bytes));
  const auto expected = body_of(number, bytes);
  ASSERT_TRUE(std::equal(item->body.begin(), item->body.end(), expected.begin(), expected.end())) << "frame " << number;
}

}  // namespace downpour::transport
