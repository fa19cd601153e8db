#include "csrc/collective/hand_over.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/transport/sealed_memory.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;
using transport::SealedMemory;

constexpr std::uint64_t kBytes = 4096;
constexpr std::size_t kSecretDigits = 32;
const LookUp kNothing = [] {};

TimePoint in(Duration duration) { return std::chrono::steady_clock::now() + duration; }
TimePoint later() { return in(std::chrono::seconds(60)); }

template <typename Thrown>
std::string error_of_taking(const std::string& ticket, TimePoint deadline) {
  try {
    take_memory(ticket, deadline, kNothing);
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

// One rank offers its memory to `takers` others, on a thread.
class Offerer {
 public:
  explicit Offerer(int takers)
      : ticket(offer_.ticket()), served_(std::async(std::launch::async, [this, takers] {
          offer_.hand_over(memory.fd(), takers, later(), kNothing);
        })) {}
  bool has_served() {
    served_.get();
    return true;
  }

 private:
  MemoryOffer offer_;

 public:
  SealedMemory memory = SealedMemory::create(kBytes);
  std::string ticket;

 private:
  std::future<void> served_;
};

TEST(HandOver, EveryTakerMapsTheSameMemory) {
  Offerer offerer(2);
  SealedMemory first = SealedMemory::map(take_memory(offerer.ticket, later(), kNothing), kBytes);
  SealedMemory second = SealedMemory::map(take_memory(offerer.ticket, later(), kNothing), kBytes);
  EXPECT_TRUE(offerer.has_served());
  offerer.memory.bytes()[17] = std::byte{42};
  EXPECT_EQ(first.bytes()[17], std::byte{42});
  EXPECT_EQ(second.bytes()[17], std::byte{42});
}

TEST(HandOver, AWrongSecretGetsNothingAndTheNextIsServed) {
  Offerer offerer(1);
  std::string wrong = offerer.ticket;
  wrong[0] = wrong[0] == '0' ? '1' : '0';
  EXPECT_NE(error_of_taking<CommError>(wrong, later()), "");
  take_memory(offerer.ticket, later(), kNothing);
  EXPECT_TRUE(offerer.has_served());
}

TEST(HandOver, ATakerThatSaysNothingOrLeavesDoesNotKeepTheOthersForEver) {
  Offerer offerer(1);
  transport::connect_local(offerer.ticket.substr(kSecretDigits));  // gone at once
  const Fd silent = transport::connect_local(offerer.ticket.substr(kSecretDigits));
  ASSERT_TRUE(silent);
  take_memory(offerer.ticket, later(), kNothing);
  EXPECT_TRUE(offerer.has_served());
}

TEST(HandOver, WhatIsNoTicketIsAProtocolError) {
  for (const std::string& ticket :
       {std::string(), std::string(32, 'a'), std::string(60, 'x'), "+" + std::string(31, '1') + "name",
        "0x" + std::string(30, '1') + "name", std::string(16, 'a') + " " + std::string(15, 'a') + "name"}) {
    EXPECT_THAT(error_of_taking<ProtocolError>(ticket, later()), HasSubstr("a ticket for shared memory: expected"))
        << ticket;
  }
}

TEST(HandOver, AnOffererThatIsGoneIsSaidToBe) {
  std::optional<MemoryOffer> offer;
  const std::string ticket = offer.emplace().ticket();
  offer.reset();
  EXPECT_THAT(error_of_taking<PeerLostError>(ticket, later()), HasSubstr("is gone"));
}

TEST(HandOver, AnOffererThatEndsWhileATakerWaitsIsNoticed) {
  std::optional<MemoryOffer> offer;
  const std::string ticket = offer.emplace().ticket();
  auto taking = std::async(std::launch::async, [&] { take_memory(ticket, later(), kNothing); });
  EXPECT_THROW(
      {
        MemoryOffer other;
        other.hand_over(0, 1, in(std::chrono::milliseconds(20)), kNothing);
      },
      TimeoutError);
  offer.reset();
  EXPECT_THROW(taking.get(), CommError);
}

TEST(HandOver, BothSidesGiveUpAtTheirDeadline) {
  const SealedMemory memory = SealedMemory::create(kBytes);
  MemoryOffer offer;
  EXPECT_NE(error_of_taking<TimeoutError>(offer.ticket(), in(std::chrono::milliseconds(20))), "");
  try {
    // The one who gave up is still in the queue: it gets its memory, and the second never comes.
    offer.hand_over(memory.fd(), 2, in(std::chrono::milliseconds(100)), kNothing);
    ADD_FAILURE() << "nobody came";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected 2, found"));
  }
}

TEST(HandOver, AWaitEndsWhenThereIsNothingToWaitFor) {
  MemoryOffer offer;
  const LookUp lost = [] { throw PeerLostError("rank 1 is lost"); };
  EXPECT_THROW(offer.hand_over(0, 1, later(), lost), PeerLostError);
  EXPECT_THROW(take_memory(offer.ticket(), later(), lost), PeerLostError);
}

}  // namespace
}  // namespace downpour::collective
