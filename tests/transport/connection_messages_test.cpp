// What a connection carries: messages, bulk bytes, credits.
#include <algorithm>
#include <set>

#include "tests/support/allocations.h"
#include "tests/transport/connection_suite.h"

namespace downpour::transport {
namespace {

using ConnectionMessages = ConnectionSuite;
DOWNPOUR_FOR_EACH_MEDIUM(ConnectionMessages);

TEST_P(ConnectionMessages, ArriveInOrderBothWaysWhateverTheirSize) {
  Joined joined(GetParam());
  const std::vector<std::size_t> sizes = {0, 1, 2, 39, 40, 41, 4093, 16'343, 16'344, 16'345, 65'535, 65'536, 0, 7};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    joined.client->send(static_cast<std::uint16_t>(kNote + i), pattern(sizes[i], i));
    joined.server().send(static_cast<std::uint16_t>(kNote + i), pattern(sizes[i], i + 100));
  }
  ASSERT_TRUE(joined.harness->until(
      [&] { return joined.door.receiver.messages == sizes.size() && joined.recorder.messages == sizes.size(); }));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(joined.door.receiver.seen[i].type, kNote + i);
    EXPECT_EQ(joined.door.receiver.seen[i].body, text_of(pattern(sizes[i], i)));
    EXPECT_EQ(joined.recorder.seen[i].body, text_of(pattern(sizes[i], i + 100)));
    EXPECT_EQ(joined.recorder.seen[i].bulk_bytes, 0u);
  }
  EXPECT_EQ(joined.door.receiver.seen[0].connection, &joined.server());
  EXPECT_EQ(joined.recorder.seen[0].connection, joined.client.get());
}

TEST_P(ConnectionMessages, BulkBytesLandAtTheirOffsetAndNowhereElse) {
  Joined joined(GetParam());
  const MutableBytes window = joined.server().incoming();
  ASSERT_EQ(window.size(), 1u << 20);
  ASSERT_EQ(joined.client->outgoing_window_bytes(), 1u << 20);
  std::vector<std::byte> expected(window.size());
  std::size_t message = 0;
  for (const auto& [offset, size] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 1},
                                                                                     {1, 7},
                                                                                     {4096, 4096},
                                                                                     {100'003, 65'537},
                                                                                     {window.size() - 13, 13},
                                                                                     {window.size(), 0},
                                                                                     {500, 0},
                                                                                     {200'000, 800'009}}) {
    const auto bulk = pattern(size, ++message);
    std::ranges::copy(bulk, expected.begin() + static_cast<std::ptrdiff_t>(offset));
    joined.client->put(kNote, pattern(message, message), bulk, offset, Credit::kNone);
    ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == message; }));
    const auto& seen = joined.door.receiver.seen.back();
    EXPECT_EQ(seen.body, text_of(pattern(message, message)));
    EXPECT_EQ(seen.bulk_bytes, size);
    EXPECT_EQ(seen.bulk_offset, offset);
    EXPECT_FALSE(seen.takes_credit);
    EXPECT_TRUE(std::ranges::equal(window, expected)) << "after message " << message;
  }
}

TEST_P(ConnectionMessages, TheMessagePointsIntoTheWindowAndTheOtherWayWorksToo) {
  Joined joined(GetParam());
  const MutableBytes window = joined.client->incoming();
  ASSERT_EQ(window.size(), 1u << 16);
  const auto bulk = pattern(60'000, 3);
  bool in_place = false;
  joined.recorder.when_message = [&](Connection& connection, const Message& message) {
    in_place = message.bulk.data() == window.data() + 1000 && &connection == joined.client.get() &&
               std::ranges::equal(message.bulk, bulk);
  };
  joined.server().put(kNote, {}, bulk, 1000, Credit::kNone);
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.messages == 1; }));
  EXPECT_TRUE(in_place);
}

TEST_P(ConnectionMessages, ManyPutsInARowAreAllThereAtTheEnd) {
  Joined joined(GetParam());
  const auto bulk = pattern(1 << 20, 5);
  for (std::size_t part = 0; part < 64; ++part) {
    joined.client->put(kNote, {}, Bytes(bulk).subspan(part << 14, 1 << 14), part << 14, Credit::kNone);
  }
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 64; }));
  EXPECT_TRUE(std::ranges::equal(joined.server().incoming(), bulk));
  EXPECT_TRUE(joined.client->idle());
}

// More than a socket takes at once, so that most of it waits when it is kept.
TEST_P(ConnectionMessages, WhatIsKeptMayChangeBeforeItIsSent) {
  Admission answer;
  answer.accepted = true;
  answer.welcome.to_acceptor_window_bytes = 1 << 24;
  Joined joined(GetParam(), answer);
  const auto first = pattern(1 << 23, 6), second = pattern(1 << 23, 7);
  auto bulk = first;
  const auto put = [&](std::uint64_t offset) {
    for (std::uint64_t part = 0; part < bulk.size(); part += 1 << 20) {
      joined.client->put(kNote, {}, Bytes(bulk).subspan(part, 1 << 20), offset + part, Credit::kNone);
    }
  };
  put(0);
  joined.client->keep_bulk();
  bulk = second;
  joined.client->keep_bulk();  // of nothing new
  put(bulk.size());
  joined.client->keep_bulk();
  std::ranges::fill(bulk, std::byte{0});
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 16; }));
  EXPECT_TRUE(std::ranges::equal(joined.server().incoming().first(first.size()), first));
  EXPECT_TRUE(std::ranges::equal(joined.server().incoming().last(second.size()), second));
}

TEST_P(ConnectionMessages, WhatThePeersWindowDoesNotHoldIsRefusedWithoutEffect) {
  Joined joined(GetParam());
  const auto bulk = pattern(100, 1);
  const std::uint64_t window = joined.client->outgoing_window_bytes();
  for (const std::uint64_t offset : {window - 99, window, window + 1, ~std::uint64_t{0} - 50}) {
    EXPECT_THROW(joined.client->put(kNote, {}, bulk, offset, Credit::kTake), Error) << offset;
  }
  EXPECT_THROW(joined.client->send(kNote, pattern(65'537, 1)), Error);
  EXPECT_THROW(joined.client->send(kFirstUserType - 1, {}), Error);
  EXPECT_EQ(joined.client->credits(), 4u);
  joined.harness->settle();
  EXPECT_EQ(joined.door.receiver.messages + static_cast<std::uint64_t>(joined.door.receiver.closed), 0u);
  joined.client->put(kNote, {}, bulk, window - 100, Credit::kTake);
  EXPECT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 1; }));
}

TEST_P(ConnectionMessages, CreditsRunOutAndComeBack) {
  Joined joined(GetParam());
  const auto bulk = pattern(64, 1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    joined.client->put(kNote, {}, bulk, i * 64, Credit::kTake);
  }
  EXPECT_EQ(joined.client->credits(), 0u);
  EXPECT_THROW(joined.client->put(kNote, {}, bulk, 0, Credit::kTake), Error);
  joined.client->send(kNote + 1, {});                         // control needs none
  joined.client->put(kNote + 2, {}, bulk, 0, Credit::kNone);  // nor do answers
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 6; }));
  EXPECT_TRUE(joined.door.receiver.seen[0].takes_credit);
  EXPECT_FALSE(joined.door.receiver.seen[5].takes_credit);

  EXPECT_THROW(joined.server().grant(5), Error);
  joined.server().grant(0);
  joined.server().grant(3);
  ASSERT_TRUE(joined.harness->until([&] { return joined.client->credits() == 3; }));
  EXPECT_GE(joined.recorder.credited, 1);
  EXPECT_THROW(joined.server().grant(2), Error);
  joined.server().grant(1);
  ASSERT_TRUE(joined.harness->until([&] { return joined.client->credits() == 4; }));
}

TEST_P(ConnectionMessages, OnlyTheConnectingSideHasCredits) {
  Joined joined(GetParam());
  EXPECT_EQ(joined.server().credits(), 0u);
  EXPECT_THROW(joined.server().put(kNote, {}, pattern(8, 1), 0, Credit::kTake), Error);
  EXPECT_THROW(joined.client->grant(1), Error);
}

TEST_P(ConnectionMessages, CreditsGrantedInsideOnMessageKeepAStreamGoing) {
  Joined joined(GetParam());
  const auto bulk = pattern(4096, 1);
  joined.door.receiver.when_message = [](Connection& connection, const Message&) { connection.grant(1); };
  std::uint64_t sent = 0;
  ASSERT_TRUE(joined.harness->until([&] {
    while (sent < 1000 && joined.client->credits() > 0) {
      joined.client->put(kNote, {}, bulk, (sent++ % 4) * 4096, Credit::kTake);
    }
    return joined.door.receiver.messages == 1000;
  }));
  ASSERT_TRUE(joined.harness->until([&] { return joined.client->credits() == 4; }));
}

// The sender never blocks, nothing is lost, and both ways are full at once.
TEST_P(ConnectionMessages, ASlowReaderDelaysAndLosesNothing) {
  Joined joined(GetParam());
  constexpr std::uint64_t kCount = 1500;
  const auto up = pattern(16 * 1024, 1);
  const auto down = pattern(16 * 1024, 2);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    joined.client->put(kNote, std::as_bytes(std::span(&i, 1)), up, 0, Credit::kNone);
    joined.server().put(kNote, std::as_bytes(std::span(&i, 1)), down, 0, Credit::kNone);
  }
  EXPECT_FALSE(joined.client->idle() && joined.server().idle() && GetParam() != Kind::kSharedMemory);
  ASSERT_TRUE(joined.harness->until(
      [&] { return joined.door.receiver.messages == kCount && joined.recorder.messages == kCount; }));
  for (std::uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(joined.door.receiver.seen[i].body, text_of(std::as_bytes(std::span(&i, 1))));
    ASSERT_EQ(joined.recorder.seen[i].body, text_of(std::as_bytes(std::span(&i, 1))));
  }
  EXPECT_TRUE(joined.client->idle() && joined.server().idle());
}

TEST_P(ConnectionMessages, AnswersFromInsideOnMessageComeBack) {
  Joined joined(GetParam());
  joined.door.receiver.when_message = [](Connection& connection, const Message& message) {
    connection.send(message.type, message.body);
  };
  joined.recorder.when_message = [&](Connection& connection, const Message& message) {
    if (joined.recorder.messages < 500) {
      connection.send(message.type, pattern(joined.recorder.messages, 3));
    }
  };
  joined.client->send(kNote, {});
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.messages == 500; }));
  EXPECT_EQ(joined.recorder.seen[499].body, text_of(pattern(499, 3)));
}

TEST_P(ConnectionMessages, SixtyFourClientsAtOnceAreKeptApart) {
  const auto harness = make_harness(GetParam());
  Door door;
  const auto listener = harness->listen(door);
  std::vector<Recorder> recorders(64);
  std::vector<std::unique_ptr<Connection>> clients;
  for (int rank = 0; rank < 64; ++rank) {
    clients.push_back(harness->connect(hello_of_worker(rank), recorders[static_cast<std::size_t>(rank)]));
  }
  ASSERT_TRUE(
      harness->until([&] { return std::ranges::all_of(recorders, [](const auto& one) { return one.opened == 1; }); }));
  ASSERT_TRUE(harness->until([&] { return door.connections.size() == 64; }));
  std::vector<std::vector<std::byte>> patterns;
  for (std::size_t rank = 0; rank < 64; ++rank) {
    patterns.push_back(pattern(50'000, rank));
  }
  for (const auto& connection : door.connections) {
    const std::int32_t rank = connection->hello().rank;
    connection->put(kNote, std::as_bytes(std::span(&rank, 1)), patterns[static_cast<std::size_t>(rank)], 0,
                    Credit::kNone);
  }
  ASSERT_TRUE(harness->until(
      [&] { return std::ranges::all_of(recorders, [](const auto& one) { return one.messages == 1; }); }));
  for (std::size_t rank = 0; rank < 64; ++rank) {
    const auto expected = static_cast<std::int32_t>(rank);
    EXPECT_EQ(recorders[rank].seen[0].body, text_of(std::as_bytes(std::span(&expected, 1))));
    EXPECT_TRUE(std::ranges::equal(clients[rank]->incoming().first(50'000), patterns[rank]));
  }
}

TEST_P(ConnectionMessages, TheSteadyStateAllocatesNothing) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  Joined joined(GetParam());
  joined.door.receiver.keeps = joined.recorder.keeps = false;
  const auto bulk = pattern(1 << 20, 1);
  const auto body = pattern(48, 2);
  joined.door.receiver.when_message = [&](Connection& connection, const Message& message) {
    connection.grant(message.takes_credit ? 1 : 0);
    connection.put(kNote, body, Bytes(bulk).first(1 << 16), 0, Credit::kNone);
  };
  const auto exchange = [&](std::uint64_t times) {
    const std::uint64_t goal = joined.recorder.messages + times;
    std::uint64_t to_send = times;
    return joined.harness->until([&] {
      for (; to_send > 0 && joined.client->credits() > 0; --to_send) {
        joined.client->put(kNote, body, bulk, 0, Credit::kTake);
      }
      return joined.recorder.messages == goal;
    });
  };
  ASSERT_TRUE(exchange(100));  // buffers find their size
  const std::uint64_t before = allocations();
  ASSERT_TRUE(exchange(200));
  EXPECT_LE(allocations() - before, 2u) << "the two of until()'s own argument";
}

}  // namespace
}  // namespace downpour::transport
