#include "csrc/transport/sealed_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

constexpr std::uint64_t kBytes = 3 * 65536 + 100;

// Two mappings of one piece of memory, as two processes have them.
struct Shared {
  SealedMemory first = SealedMemory::create(kBytes);
  SealedMemory second = SealedMemory::map(Fd(::dup(first.fd())), kBytes);
};

bool holds(MutableBytes memory, int value) {
  return std::ranges::all_of(memory, [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

TEST(SealedMemoryTest, WhatOneWritesTheOtherReads) {
  Shared shared;
  EXPECT_TRUE(holds(shared.second.bytes(), 0));
  std::memset(shared.first.bytes().data(), 7, kBytes);
  EXPECT_TRUE(holds(shared.second.bytes(), 7));
}

TEST(SealedMemoryTest, AnotherSizeIsRefused) {
  const SealedMemory memory = SealedMemory::create(kBytes);
  EXPECT_THROW(SealedMemory::map(Fd(::dup(memory.fd())), kBytes + 1), ProtocolError);
  EXPECT_THROW(SealedMemory::map(Fd(::dup(0)), kBytes), ProtocolError);
}

TEST(SealedMemoryTest, KeptPrivatelyItStaysAsItWasWhatEverOthersWrite) {
  Shared shared;
  std::memset(shared.first.bytes().data(), 7, kBytes);
  std::byte* const before = shared.first.bytes().data();
  shared.first.keep_privately();
  EXPECT_EQ(shared.first.bytes().data(), before);
  EXPECT_TRUE(holds(shared.first.bytes(), 7));
  std::memset(shared.second.bytes().data(), 9, kBytes);
  EXPECT_TRUE(holds(shared.first.bytes(), 7));
  std::memset(shared.first.bytes().data(), 8, kBytes);
  EXPECT_TRUE(holds(shared.second.bytes(), 9));
}

// A backward pass goes on writing gradients while the memory under it is exchanged.
TEST(SealedMemoryTest, NoWriteOfAnotherThreadIsLostMeanwhile) {
  for (int round = 0; round < 20; ++round) {
    Shared shared;
    auto* const counter = reinterpret_cast<std::atomic<std::uint64_t>*>(shared.first.bytes().data() + 2 * 65536);
    std::atomic<bool> ended{false};
    std::uint64_t counted = 0;
    std::thread writer([&] {
      while (!ended) {
        counter->fetch_add(1);
        ++counted;
      }
    });
    while (counter->load() == 0) {
      std::this_thread::yield();
    }
    shared.first.keep_privately();
    ended = true;
    writer.join();
    EXPECT_EQ(counter->load(), counted);
  }
}

}  // namespace
}  // namespace downpour::transport
