// What only inproc has: the script decides.
#include "csrc/transport/inproc.h"

#include <algorithm>

#include "tests/transport/connection_suite.h"

namespace downpour::transport {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kUp = 0;
constexpr int kDown = 1;

struct Script {
  std::unique_ptr<Connection> connect(Recorder& recorder, int rank = 1) {
    return network.connect("server", hello_of_worker(rank), recorder);
  }
  // Opens the next link by hand.
  std::unique_ptr<Connection> join(Recorder& recorder, int rank = 1) {
    auto client = connect(recorder, rank);
    EXPECT_TRUE(network.deliver(network.links() - 1, kUp));
    EXPECT_TRUE(network.deliver(network.links() - 1, kDown));
    EXPECT_EQ(recorder.opened, 1);
    return client;
  }

  InprocNetwork network;
  Door door;
  std::unique_ptr<Listener> listener = network.listen("server", door);
};

TEST(Inproc, NothingMovesUntilItIsDelivered) {
  Script script;
  Recorder recorder;
  EXPECT_EQ(script.network.links(), 0);
  const auto client = script.connect(recorder);
  EXPECT_EQ(script.network.links(), 1);
  EXPECT_EQ(script.network.waiting(0, kUp), 1);
  EXPECT_EQ(script.network.waiting(0, kDown), 0);
  EXPECT_FALSE(script.network.deliver(0, kDown));
  EXPECT_TRUE(script.door.hellos.empty());
  EXPECT_TRUE(script.network.deliver(0, kUp));
  EXPECT_EQ(script.door.connections.size(), 1u);
  EXPECT_EQ(recorder.opened, 0);
  EXPECT_TRUE(script.network.deliver(0, kDown));
  EXPECT_EQ(recorder.opened, 1);

  client->send(kNote, {});
  client->send(kNote + 1, {});
  EXPECT_FALSE(client->idle());
  EXPECT_EQ(script.network.waiting(0, kUp), 2);
  EXPECT_TRUE(script.network.deliver(0, kUp));
  EXPECT_EQ(script.door.receiver.messages, 1u);
  EXPECT_EQ(script.network.deliver_all(), 1);
  EXPECT_EQ(script.door.receiver.messages, 2u);
  EXPECT_EQ(script.network.deliver_all(), 0);
  EXPECT_TRUE(client->idle());
}

TEST(Inproc, TheScriptDecidesAcrossLinks) {
  Script script;
  Recorder recorders[2];
  const auto first = script.join(recorders[0], 0);
  const auto second = script.join(recorders[1], 1);
  first->send(kNote, {});
  second->send(kNote, {});
  first->send(kNote, {});
  for (const int link : {1, 0, 0}) {
    EXPECT_TRUE(script.network.deliver(link, kUp));
  }
  std::vector<int> ranks;
  for (const auto& seen : script.door.receiver.seen) {
    ranks.push_back(seen.connection->hello().rank);
  }
  EXPECT_EQ(ranks, (std::vector<int>{1, 0, 0}));
}

TEST(Inproc, HeldLanesWaitForTheirRelease) {
  Script script;
  Recorder recorder;
  const auto client = script.join(recorder);
  script.door.receiver.when_message = [](Connection& connection, const Message&) { connection.send(kNote, {}); };
  script.network.hold(0, kDown);
  client->send(kNote, {});
  EXPECT_EQ(script.network.deliver_all(), 1);
  EXPECT_EQ(recorder.messages, 0u);
  script.network.release(0, kDown);
  EXPECT_EQ(script.network.deliver_all(), 1);
  EXPECT_EQ(recorder.messages, 1u);
}

TEST(Inproc, BulkBytesAreCopiedWhenTheyAreDelivered) {
  Script script;
  Recorder recorder;
  const auto client = script.join(recorder);
  auto bulk = pattern(100, 1);
  client->put(kNote, {}, bulk, 0, Credit::kNone);
  bulk[50] = std::byte{0xff};
  script.network.deliver_all();
  EXPECT_EQ(script.door.connections[0]->incoming()[50], std::byte{0xff});
}

TEST(Inproc, WhatWasSentBeforeACloseArrivesThoughItsMemoryIsGone) {
  Script script;
  Recorder recorder;
  auto client = script.join(recorder);
  {
    const auto bulk = pattern(100, 1);
    client->put(kNote, {}, bulk, 0, Credit::kNone);
    client.reset();
  }
  script.network.deliver_all();
  EXPECT_TRUE(std::ranges::equal(script.door.connections[0]->incoming().first(100), pattern(100, 1)));
  EXPECT_EQ(script.door.receiver.why, "goodbye");
}

TEST(Inproc, ACutLosesWhatWaitsAndBothEndsSeeIt) {
  Script script;
  Recorder recorder;
  const auto client = script.join(recorder);
  client->send(kNote, {});
  script.door.connections[0]->send(kNote, {});
  script.network.cut(0);
  EXPECT_THAT(recorder.why, StartsWith("PeerLostError: "));
  EXPECT_THAT(script.door.receiver.why, StartsWith("PeerLostError: "));
  EXPECT_EQ(script.network.deliver_all(), 0);
  EXPECT_EQ(recorder.closed + script.door.receiver.closed, 2);
  EXPECT_EQ(recorder.messages + script.door.receiver.messages, 0u);
  EXPECT_THROW(client->send(kNote, {}), Error);
  script.network.cut(0);
  EXPECT_EQ(recorder.closed + script.door.receiver.closed, 2);
}

TEST(Inproc, ACutDuringTheHandshakeIsALossToo) {
  for (const int delivered : {0, 1}) {
    Script script;
    Recorder recorder;
    const auto client = script.connect(recorder);
    for (int i = 0; i < delivered; ++i) {
      script.network.deliver(0, kUp);
    }
    script.network.cut(0);
    EXPECT_EQ(recorder.closed, 1);
    EXPECT_EQ(recorder.opened, 0);
    EXPECT_EQ(script.door.receiver.closed, delivered);
  }
}

// At every byte of two messages: those before the cut arrive, the one it falls into leaves its first bulk bytes only.
TEST(Inproc, ACutFallsAtTheByteThatTheScriptSays) {
  constexpr std::size_t kMessage = kFrameHeaderBytes + 5 + 20;
  for (std::size_t bytes = 0; bytes <= 2 * kMessage + 1; ++bytes) {
    Script script;
    Recorder recorder;
    const auto client = script.join(recorder);
    const auto bulk = pattern(20, 1);
    client->put(kNote, pattern(5, 1), bulk, 0, Credit::kNone);
    client->put(kNote, pattern(5, 1), bulk, 100, Credit::kNone);
    script.network.cut_after(0, kUp, bytes);
    script.network.deliver_all();
    const MutableBytes window = script.door.connections[0]->incoming();
    EXPECT_EQ(script.door.receiver.messages, bytes / kMessage) << bytes;
    for (std::size_t i = 0; i < 20; ++i) {
      const std::size_t first_at = kFrameHeaderBytes + 5 + i;
      EXPECT_EQ(window[i] == bulk[i] && bulk[i] != std::byte{0}, bytes > first_at && bulk[i] != std::byte{0})
          << bytes << " " << i;
      EXPECT_EQ(window[100 + i] == bulk[i] && bulk[i] != std::byte{0},
                bytes > kMessage + first_at && bulk[i] != std::byte{0});
    }
    const bool is_cut = bytes <= 2 * kMessage;
    EXPECT_EQ(recorder.closed, is_cut ? 1 : 0) << bytes;
    EXPECT_EQ(script.door.receiver.closed, is_cut ? 1 : 0) << bytes;
  }
}

TEST(Inproc, RefusedNamesCanBeReachedAgainLater) {
  Script script;
  Recorder refused;
  script.network.refuse("server");
  const auto first = script.connect(refused);
  script.network.deliver_all();
  EXPECT_THAT(refused.why, AllOf(StartsWith("TimeoutError: "), HasSubstr("nobody listens at server")));
  EXPECT_TRUE(script.door.hellos.empty());
  script.network.accept_again("server");
  Recorder accepted;
  const auto second = script.join(accepted);
  EXPECT_THROW(script.network.listen("server", script.door), Error);
  script.listener.reset();
  Recorder late;
  const auto third = script.connect(late);
  script.network.deliver_all();
  EXPECT_THAT(late.why, StartsWith("TimeoutError: "));
  EXPECT_NO_THROW(script.listener = script.network.listen("server", script.door));
}

// As an end of file would over real media (asked for by the parameter server's tests).
TEST(Inproc, AnEndThatFailsIsALossForTheOther) {
  const CapturedLog log;
  Script script;
  Recorder recorder;
  const auto client = script.join(recorder);
  script.door.receiver.when_message = [](Connection& connection, const Message&) {
    connection.send(kNote, {});
    throw ProtocolError("makes no sense");
  };
  client->send(kNote, {});
  EXPECT_TRUE(script.network.deliver(0, kUp));
  EXPECT_EQ(script.door.receiver.closed, 1);
  EXPECT_EQ(recorder.closed, 0) << "not before it is delivered to";
  script.network.deliver_all();
  EXPECT_EQ(recorder.messages, 1u) << "what was sent before arrives";
  EXPECT_THAT(recorder.why, StartsWith("PeerLostError: "));
}

TEST(Inproc, WithALoopSilenceIsALoss) {
  const CapturedLog log;
  ManualClock clock;
  Loop loop(clock);
  InprocNetwork network(&loop);
  Door door;
  Recorder recorder;
  const auto listener = network.listen("server", door);
  const auto client = network.connect("server", hello_of_worker(1), recorder);
  network.deliver_all();
  client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  door.connections[0]->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  const auto pass = [&](Duration time) {
    for (Duration passed{}; passed < time; passed += milliseconds(100)) {
      clock.advance(milliseconds(100));
      loop.run_once(clock.now());
      network.deliver_all();
    }
  };
  pass(std::chrono::seconds(5));
  EXPECT_EQ(recorder.closed + door.receiver.closed, 0);
  network.hold(0, kDown);
  pass(milliseconds(800));
  EXPECT_EQ(recorder.closed, 0);
  EXPECT_EQ(network.waiting(0, kDown), 1) << "beats do not pile up";
  EXPECT_THAT(log.text(), HasSubstr("has not been heard for"));
  pass(milliseconds(300));
  EXPECT_THAT(recorder.why,
              AllOf(StartsWith("PeerLostError: peer at server (inproc) was lost: nothing heard for 1 s")));
  EXPECT_EQ(door.receiver.closed, 1);
}

TEST(Inproc, ConnectionsAndListenersMayOutliveTheNetwork) {
  Door door;
  Recorder recorder;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> client;
  {
    InprocNetwork network;
    listener = network.listen("server", door);
    client = network.connect("server", hello_of_worker(1), recorder);
    network.deliver_all();
  }
  client->send(kNote, {});
  client->close();
  door.connections.clear();
}

TEST(Inproc, LinksAndDirectionsThatAreNotThereAreErrors) {
  Script script;
  EXPECT_THROW(script.network.waiting(0, 0), Error);
  EXPECT_THROW(script.network.cut(0), Error);
  Recorder recorder;
  const auto client = script.connect(recorder);
  EXPECT_THROW(script.network.deliver(0, 2), Error);
  EXPECT_THROW(script.network.hold(-1, 0), Error);
}

}  // namespace
}  // namespace downpour::transport
