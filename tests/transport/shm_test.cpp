#include "csrc/transport/shm.h"

#include "tests/support/allocations.h"
#include "tests/transport/shm_ends.h"

namespace downpour::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Shm, MessagesArriveInOrderBothWays) {
  Pair pair;
  pair.open();
  pair.worker->send(100, as_bytes("a"));
  pair.worker->send(100, as_bytes("b"));
  pair.server->send(101, as_bytes("c"));
  pair.settle();
  EXPECT_THAT(pair.at_server.texts, ElementsAre("a", "b"));
  EXPECT_THAT(pair.at_worker.texts, ElementsAre("c"));
  EXPECT_EQ(pair.server->medium(), Medium::kSharedMemory);
  EXPECT_EQ(pair.server->peer(), "worker 1 (shm)");
  EXPECT_EQ(pair.server->hello().rank, 1);
}

TEST(Shm, BulkBytesInThePeersWindowAreNotMoved) {
  Pair pair;
  pair.open();
  const MutableBytes window = pair.worker->outgoing();
  ASSERT_EQ(window.size(), pair.worker->outgoing_window_bytes());
  std::ranges::fill(window.subspan(512, 1000), std::byte{9});
  MutableBytes seen;
  pair.at_server.act = [&](Connection&, const Message& message) {
    seen = message.bulk;
    EXPECT_EQ(message.bulk_offset, 512u);
    EXPECT_FALSE(message.takes_credit);
  };
  pair.worker->put(100, {}, window.subspan(512, 1000), 512, Credit::kNone);
  pair.settle();
  EXPECT_EQ(seen.data(), pair.server->incoming().data() + 512);
  EXPECT_THAT(seen, testing::Each(std::byte{9}));
  seen[0] = std::byte{1};
  EXPECT_EQ(window[512], std::byte{1}) << "the same page";
}

TEST(Shm, BulkBytesFromElsewhereAreCopiedToTheirPlace) {
  Pair pair;
  pair.open();
  const auto mine = bytes_of("from elsewhere");
  pair.server->put(100, {}, mine, 4096 - mine.size(), Credit::kNone);
  pair.worker->put(100, {}, mine, 7, Credit::kNone);
  pair.worker->put(100, {}, pair.worker->outgoing().subspan(7, mine.size()), 9, Credit::kNone);  // overlaps itself
  std::vector<std::string> bulks;
  pair.at_worker.act = [&](Connection&, const Message& message) { bulks.push_back(text_of(message.bulk)); };
  pair.settle();
  EXPECT_THAT(bulks, ElementsAre("from elsewhere"));
  EXPECT_EQ(text_of(pair.server->incoming().subspan(9, mine.size())), "from elsewhere");
}

TEST(Shm, BulkOutsideTheWindowAndMissingCreditsAreTheCallersMistakes) {
  Pair pair;
  pair.open();
  const std::vector<std::byte> bulk(10);
  for (const std::uint64_t offset :
       {std::uint64_t{65'527}, std::uint64_t{65'537}, ~std::uint64_t{0}, ~std::uint64_t{0} - 5}) {
    EXPECT_THROW(pair.worker->put(100, {}, bulk, offset, Credit::kNone), Error) << offset;
  }
  EXPECT_THROW(pair.server->put(100, {}, bulk, 0, Credit::kTake), Error) << "the accepting side has none";
  EXPECT_THROW(pair.worker->send(100, std::vector<std::byte>(64 * 1024 + 1)), Error);
  EXPECT_THROW(pair.worker->send(8, {}), Error);
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 0u) << "nothing has been sent";
}

TEST(Shm, CreditsRunOutAndComeBack) {
  Pair pair;
  pair.open();
  const std::vector<std::byte> bulk(10);
  EXPECT_EQ(pair.worker->credits(), 2u);
  pair.worker->put(100, {}, bulk, 0, Credit::kTake);
  pair.worker->put(100, {}, bulk, 10, Credit::kTake);
  EXPECT_EQ(pair.worker->credits(), 0u);
  EXPECT_THROW(pair.worker->put(100, {}, bulk, 20, Credit::kTake), Error);
  pair.worker->put(100, {}, bulk, 20, Credit::kNone);
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 3u);
  pair.server->grant(2);
  pair.settle();
  EXPECT_EQ(pair.worker->credits(), 2u);
  EXPECT_GE(pair.at_worker.credit_calls, 1);
}

TEST(Shm, AFullRingQueuesAndGoesOn) {
  Pair pair({.ring_bytes = 256});
  pair.open();
  for (int i = 0; i < 5000; ++i) {
    pair.worker->send(100, as_bytes(concat("message ", i)));
    pair.server->send(100, as_bytes(concat("answer ", i)));
  }
  EXPECT_FALSE(pair.worker->idle());
  pair.settle();
  EXPECT_TRUE(pair.worker->idle());
  ASSERT_EQ(pair.at_server.messages, 5000u);
  ASSERT_EQ(pair.at_worker.messages, 5000u);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(pair.at_server.texts[static_cast<std::size_t>(i)], concat("message ", i));
    ASSERT_EQ(pair.at_worker.texts[static_cast<std::size_t>(i)], concat("answer ", i));
  }
}

TEST(Shm, BodiesUpToTheLimitPassThroughATinyRing) {
  Pair pair({.ring_bytes = 64});
  pair.open();
  std::string large(64 * 1024, 'x');
  large.back() = 'y';
  pair.worker->send(100, as_bytes(large));
  pair.worker->send(100, {});
  pair.settle();
  EXPECT_THAT(pair.at_server.texts, ElementsAre(large, ""));
}

TEST(Shm, CreditsGatherWhileTheRingIsFull) {
  Pair pair({.ring_bytes = 64, .to_acceptor_window_bytes = 100}, Mapping::kTwo, 50);
  pair.open();
  const std::vector<std::byte> bulk(1);
  pair.at_server.act = [](Connection& connection, const Message& message) {
    connection.send(100, as_bytes("a long answer that fills the ring"));
    if (message.takes_credit) {
      connection.grant(1);
    }
  };
  for (int i = 0; i < 50; ++i) {
    pair.worker->put(100, {}, bulk, 0, Credit::kTake);
  }
  pair.settle();
  EXPECT_EQ(pair.worker->credits(), 50u);
  EXPECT_EQ(pair.at_worker.messages, 50u);
  EXPECT_EQ(pair.at_worker.closed, 0);
}

// ---- the end -----------------------------------------------------------------------------------

TEST(ShmEnding, AGoodbyeComesAfterEverythingThatWasSent) {
  Pair pair;
  pair.open();
  pair.worker->send(100, as_bytes("last"));
  pair.worker->close();
  pair.settle();
  EXPECT_THAT(pair.at_server.texts, ElementsAre("last"));
  EXPECT_EQ(pair.at_server.closed, 1);
  EXPECT_EQ(pair.at_server.why, "goodbye");
  EXPECT_EQ(pair.at_worker.closed, 0) << "not after its own close";
  EXPECT_THROW(pair.server->send(100, {}), Error);
  EXPECT_THROW(pair.worker->send(100, {}), Error);
  pair.server.reset();
  pair.worker.reset();
  pair.settle();
  EXPECT_EQ(pair.at_server.closed + pair.at_worker.closed, 1);
}

TEST(ShmEnding, ALostPeerIsReportedAfterWhatItHadSent) {
  Pair pair({.ring_bytes = 32'768});
  pair.server = pair.accept(pair.loop, pair.at_server);
  RawWorker raw(pair);
  for (int i = 0; i < 300; ++i) {  // several polls' worth
    ASSERT_TRUE(raw.say("before the end"));
  }
  raw.die();
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 300u);
  EXPECT_EQ(pair.at_server.closed, 1);
  EXPECT_THAT(pair.at_server.why, AllOf(StartsWith("PeerLostError"), HasSubstr("worker 1 (shm)")));
}

TEST(ShmEnding, AGoodbyeBeforeTheEndOfFileIsNoLoss) {
  Pair pair;
  pair.server = pair.accept(pair.loop, pair.at_server);
  RawWorker raw(pair);
  raw.say("x");
  raw.push({.type = static_cast<std::uint16_t>(FrameType::kGoodbye)});
  raw.die();
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 1u);
  EXPECT_EQ(pair.at_server.why, "goodbye");
}

TEST(ShmEnding, AFrameThatWasNeverFinishedIsALoss) {
  Pair pair({.ring_bytes = 64});
  pair.server = pair.accept(pair.loop, pair.at_server);
  RawWorker raw(pair);
  EXPECT_FALSE(raw.say(std::string(500, 'x')));
  raw.die();
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 0u);
  EXPECT_THAT(pair.at_server.why, StartsWith("PeerLostError"));
}

TEST(ShmEnding, TheSegmentOutlivesTheConnection) {
  Pair pair;
  pair.open();
  const std::shared_ptr<Segment> kept = segment_of(*pair.worker);
  ASSERT_NE(kept, nullptr);
  pair.worker.reset();
  pair.server.reset();
  kept->window_to_acceptor().back() = std::byte{3};
  EXPECT_EQ(kept->window_to_acceptor().back(), std::byte{3});
}

TEST(ShmEnding, WithAFullRingCloseStillReturnsAndThePeerGetsWhatWentIn) {
  Pair pair({.ring_bytes = 256});
  pair.open();
  for (int i = 0; i < 100; ++i) {
    pair.worker->send(100, as_bytes("0123456789"));
  }
  pair.worker->close();
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 5u);
  EXPECT_THAT(pair.at_server.why, StartsWith("PeerLostError"));
}

TEST(ShmEnding, TheConnectionMayBeDestroyedOrClosedInsideAnyCallback) {
  for (const int what : {0, 1, 2, 3}) {
    Pair pair;
    pair.open();
    const auto destroy = [&](Connection&) { pair.server.reset(); };
    pair.at_server.act = [&](Connection& connection, const Message& message) {
      what == 0   ? destroy(connection)
      : what == 1 ? connection.close()
      : what == 2 ? throw ProtocolError("no such thing")
                  : (void)message;
    };
    pair.at_server.on_closed_act = destroy;
    for (int i = 0; i < 3; ++i) {
      pair.worker->send(100, as_bytes("x"));
    }
    pair.settle();
    if (what == 3) {
      pair.worker.reset();
    }
    pair.settle();
    EXPECT_EQ(pair.at_server.messages, what == 3 ? 3u : 1u) << what;
    EXPECT_EQ(pair.at_server.closed, what >= 2 ? 1 : 0) << what;
    EXPECT_EQ(pair.at_worker.closed, what == 3 ? 0 : 1) << what;
  }
}

TEST(ShmEnding, TheConnectionMayBeDestroyedInsideOnCredit) {
  Pair pair;
  pair.open();
  pair.at_worker.on_credit_act = [&](Connection&) { pair.worker.reset(); };
  pair.at_server.act = [](Connection& connection, const Message&) { connection.grant(1); };
  pair.worker->put(100, {}, std::vector<std::byte>(1), 0, Credit::kTake);
  pair.settle();
  EXPECT_EQ(pair.worker, nullptr);
  EXPECT_EQ(pair.at_server.why, "goodbye");
}

TEST(ShmEnding, AnExceptionOfTheReceiverLeavesThroughTheLoopAndChangesNothing) {
  Pair pair;
  pair.open();
  pair.at_server.act = [&](Connection&, const Message&) {
    pair.at_server.act = nullptr;
    throw std::logic_error("the layer above");
  };
  pair.worker->send(100, as_bytes("a"));
  pair.worker->send(100, as_bytes("b"));
  EXPECT_THROW(pair.settle(), std::logic_error);
  pair.settle();
  EXPECT_THAT(pair.at_server.texts, ElementsAre("a", "b"));
  EXPECT_EQ(pair.at_server.closed, 0);
}

TEST(ShmEnding, SilenceIsALossAndHeartbeatsAreLife) {
  ManualClock clock;
  Loop loop(clock);
  Ends ends;
  Log at_server, at_worker;
  const auto server = ends.accept(loop, at_server);
  const auto worker = ends.connect(loop, at_worker);
  const auto turn = [&] {
    while (loop.run_once(clock.now())) {
    }
  };
  const auto ms = [](int count) { return Duration(std::chrono::milliseconds(count)); };
  server->start_heartbeat(ms(100), ms(500), ms(1000));
  worker->start_heartbeat(ms(100), ms(5'000), ms(10'000));
  for (int i = 0; i < 50; ++i) {
    clock.advance(ms(100));
    turn();
  }
  EXPECT_EQ(at_server.closed, 0);
  EXPECT_GE(server->last_heard(), clock.now() - ms(200));
  worker->start_heartbeat(ms(9'000), ms(9'500), ms(10'000));
  for (int i = 0; i < 12 && at_server.closed == 0; ++i) {
    clock.advance(ms(100));
    turn();
  }
  EXPECT_THAT(at_server.why, AllOf(StartsWith("PeerLostError"), HasSubstr("worker 1 (shm)")));
  EXPECT_EQ(at_server.closed, 1);
}

// A thread that computed for longer than the limit has not heard anything, and the peer is not to blame.
TEST(ShmEnding, WhatWaitsInTheRingIsHeardBeforeSilenceIsJudged) {
  ManualClock clock;
  Loop server_loop(clock), worker_loop(clock);
  Ends ends;
  Log at_server, at_worker;
  const auto server = ends.accept(server_loop, at_server);
  const auto worker = ends.connect(worker_loop, at_worker);
  const auto ms = [](int count) { return Duration(std::chrono::milliseconds(count)); };
  server->start_heartbeat(ms(100), ms(500), ms(1000));
  worker->start_heartbeat(ms(100), ms(50'000), ms(100'000));
  for (int i = 0; i < 50; ++i) {
    clock.advance(ms(100));
    while (worker_loop.run_once(clock.now())) {
    }
  }
  while (server_loop.run_once(clock.now())) {
  }
  EXPECT_EQ(at_server.closed, 0) << at_server.why;
}

// ---- waking ------------------------------------------------------------------------------------

// However the message and the sleep fall together. A doorbell that is not rung is a test that hangs.
TEST(ShmWaking, ALoopThatSleepsHearsTheNextMessage) {
  SteadyClock clock;
  Loop server_loop(clock), worker_loop(clock);
  Ends ends;
  Log at_server, at_worker;
  const auto server = ends.accept(server_loop, at_server);
  const auto worker = ends.connect(worker_loop, at_worker);
  while (worker_loop.run_once(clock.now())) {
  }
  for (int i = 0; i < 200; ++i) {
    std::thread sender([&] { server->send(100, as_bytes("x")); });
    EXPECT_TRUE(worker_loop.run_until([&] { return at_worker.messages == static_cast<std::uint64_t>(i) + 1; },
                                      clock.now() + std::chrono::seconds(60)));
    sender.join();
  }
}

TEST(ShmWaking, ABatchIsBoundedSoThatOthersGetTheirTurn) {
  Pair pair({.ring_bytes = 32'768});
  pair.open();
  for (int i = 0; i < 200; ++i) {
    pair.worker->send(100, as_bytes("x"));
  }
  pair.loop.run_once(pair.loop.now());
  EXPECT_EQ(pair.at_server.messages, 64u);
  pair.settle();
  EXPECT_EQ(pair.at_server.messages, 200u);
}

TEST(ShmSteadyState, AllocatesNothing) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  Pair pair({.ring_bytes = 1024, .to_acceptor_window_bytes = 4096, .to_connector_window_bytes = 4096});
  pair.open();
  pair.at_server.keeps_texts = pair.at_worker.keeps_texts = false;
  const std::vector<std::byte> body(100), bulk(1000);
  pair.at_server.act = [&](Connection& connection, const Message& message) {
    connection.grant(message.takes_credit ? 1 : 0);
    connection.put(101, body, bulk, 0, Credit::kNone);
  };
  const auto round = [&] {
    pair.worker->put(100, body, bulk, 0, Credit::kTake);
    for (int i = 0; i < 20; ++i) {  // more than the ring holds
      pair.worker->send(100, body);
    }
    pair.settle();
  };
  round();
  round();
  const std::uint64_t before = allocations();
  for (int i = 0; i < 1000; ++i) {
    round();
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(pair.at_worker.messages, 1002u * 21);
}

}  // namespace
}  // namespace downpour::transport
