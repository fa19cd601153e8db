// How a connection ends: goodbye, loss, silence, from inside callbacks.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/allocations.h"
#include "tests/transport/connection_suite.h"

namespace downpour::transport {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using ConnectionEndings = ConnectionSuite;
DOWNPOUR_FOR_EACH_MEDIUM(ConnectionEndings);

TEST_P(ConnectionEndings, AGoodbyeComesAfterEverythingThatWasSent) {
  Joined joined(GetParam());
  for (int i = 0; i < 10; ++i) {
    joined.client->send(kNote, pattern(1000, 1));
  }
  joined.client->close();
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.closed == 1; }));
  EXPECT_EQ(joined.door.receiver.messages, 10u);
  EXPECT_EQ(joined.door.receiver.why, "goodbye");
  joined.harness->settle();
  EXPECT_EQ(joined.door.receiver.closed, 1);
  EXPECT_EQ(joined.recorder.closed, 0) << "not called after our own close()";
}

TEST_P(ConnectionEndings, DestructionSaysGoodbyeToo) {
  Joined joined(GetParam());
  joined.door.connections.clear();
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.closed == 1; }));
  EXPECT_EQ(joined.recorder.why, "goodbye");
}

TEST_P(ConnectionEndings, CloseIsDoneOnceAndNothingMayFollow) {
  Joined joined(GetParam());
  joined.client->close();
  joined.client->close();
  EXPECT_THROW(joined.client->send(kNote, {}), Error);
  EXPECT_THROW(joined.client->put(kNote, {}, {}, 0, Credit::kNone), Error);
  joined.harness->settle();
  EXPECT_EQ(joined.door.receiver.closed, 1);
  EXPECT_THROW(joined.server().send(kNote, {}), Error);
  joined.server().close();
}

// An answer and a goodbye reach a peer whose own messages were never read.
TEST_P(ConnectionEndings, UnreadMessagesOfThePeerDoNotSpoilAGoodbye) {
  Joined joined(GetParam());
  for (int i = 0; i < 100; ++i) {
    joined.client->send(kNote, pattern(1000, 1));
  }
  joined.server().send(kNote, pattern(1000, 2));
  joined.server().close();
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.closed == 1; }));
  EXPECT_EQ(joined.recorder.messages, 1u);
  EXPECT_EQ(joined.recorder.why, "goodbye");
}

struct Footprint {  // of this process
  std::ptrdiff_t descriptors = 0;
  std::uint64_t mapped_pages = 0;
};

Footprint footprint() {
  Footprint found;
  found.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  std::ifstream("/proc/self/statm") >> found.mapped_pages;
  return found;
}

// A worker that comes back for days costs no more than one that stays.
TEST_P(ConnectionEndings, ManyReconnectionsLeaveNothingBehind) {
  const auto harness = make_harness(GetParam());
  Door door;
  door.receiver.keeps = false;
  const auto listener = harness->listen(door);
  const std::vector<std::byte> bulk = pattern(1024 * 1024, 1);
  const auto come_and_go = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Recorder recorder;
      auto client = harness->connect(hello_of_worker(1), recorder, {.lasting_bulk = true});
      const std::uint64_t before = door.receiver.messages;
      ASSERT_TRUE(harness->until([&] { return recorder.opened == 1; })) << recorder.why;
      client->put(kNote, {}, bulk, 0, Credit::kTake);
      ASSERT_TRUE(harness->until([&] { return door.receiver.messages > before; }));
      const int closed = door.receiver.closed;
      (i % 2 == 0 ? client : door.connections.back()).reset();
      ASSERT_TRUE(harness->until([&] { return recorder.closed > 0 || door.receiver.closed > closed; }));
      door.connections.clear();
    }
  };
  come_and_go(20);
  harness->settle();
  const Footprint first = footprint();
  come_and_go(200);
  harness->settle();
  const Footprint last = footprint();
  EXPECT_EQ(last.descriptors, first.descriptors);
  if (kCountsAllocations) {  // ThreadSanitizer maps memory of its own for what it follows
    EXPECT_LE(last.mapped_pages, first.mapped_pages + 512) << "one window of each connection would be 51,200 pages";
  }
}

TEST_P(ConnectionEndings, BothMaySayGoodbyeAtOnce) {
  Joined joined(GetParam());
  joined.client->close();
  joined.server().close();
  joined.harness->settle();
  EXPECT_EQ(joined.recorder.closed + joined.door.receiver.closed, 0);
}

TEST_P(ConnectionEndings, ClosingInsideEveryCallbackIsSafe) {
  for (const bool destroys : {false, true}) {
    for (const int where : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << (destroys ? "destroys" : "closes") << " in callback " << where);
      const auto harness = make_harness(GetParam());
      Door door;
      Recorder recorder;
      const auto listener = harness->listen(door);
      std::unique_ptr<Connection> client;
      bool done = false;
      const auto end = [&](Connection& connection) {
        done = true;
        destroys ? client.reset() : connection.close();
      };
      if (where == 0) {
        recorder.when_opened = end;
      } else if (where == 1) {
        recorder.when_message = [&](Connection& connection, const Message&) { end(connection); };
      } else if (where == 2) {
        recorder.when_credited = end;
      } else {
        recorder.when_closed = end;
      }
      client = harness->connect(hello_of_worker(1), recorder);
      ASSERT_TRUE(harness->until([&] { return door.connections.size() == 1 && recorder.opened == 1; }));
      if (where == 2) {
        client->put(kNote, {}, {}, 0, Credit::kTake);
        ASSERT_TRUE(harness->until([&] { return door.receiver.messages == 1; }));
        door.connections[0]->grant(1);
      }
      if (where > 0) {
        door.connections[0]->send(kNote, {});
        door.connections[0]->send(kNote, {});  // must not be delivered any more
      }
      if (where == 3) {
        door.connections[0]->close();
      }
      ASSERT_TRUE(harness->until([&] { return done; }));
      harness->settle();
      EXPECT_EQ(recorder.messages, where == 3 ? 2u : where == 1 ? 1u : 0u);
      EXPECT_EQ(recorder.closed, where == 3 ? 1 : 0);
      EXPECT_EQ(door.receiver.closed, where == 3 ? 0 : 1) << door.receiver.why;
    }
  }
}

TEST_P(ConnectionEndings, TheAcceptingSideMayDestroyInsideItsCallbacksToo) {
  Joined joined(GetParam());
  joined.door.receiver.when_message = [&](Connection&, const Message&) { joined.door.connections.clear(); };
  joined.client->send(kNote, {});
  joined.client->send(kNote, {});
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.closed == 1; }));
  EXPECT_EQ(joined.door.receiver.messages, 1u);
}

TEST_P(ConnectionEndings, AProtocolErrorOfTheLayerAboveEndsTheConnection) {
  const CapturedLog log;
  Joined joined(GetParam());
  joined.door.receiver.when_message = [](Connection&, const Message&) {
    throw ProtocolError("a push that makes no sense");
  };
  joined.client->send(kNote, {});
  joined.client->send(kNote, {});
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.closed == 1 && joined.recorder.closed == 1; }));
  EXPECT_EQ(joined.door.receiver.messages, 1u);
  EXPECT_THAT(joined.door.receiver.why,
              AllOf(StartsWith("ProtocolError: worker 1 ("), HasSubstr("a push that makes no sense")));
  EXPECT_THAT(joined.recorder.why, StartsWith("PeerLostError: "));
  EXPECT_THAT(log.text(), HasSubstr("a push that makes no sense"));
}

TEST_P(ConnectionEndings, OtherExceptionsLeaveThroughTheLoopAndTheConnectionGoesOn) {
  Joined joined(GetParam());
  joined.door.receiver.when_message = [&](Connection&, const Message&) {
    if (joined.door.receiver.messages == 1) {
      throw std::runtime_error("out of luck");
    }
  };
  joined.client->send(kNote, {});
  joined.client->send(kNote, {});
  joined.client->send(kNote, {});
  EXPECT_THROW(joined.harness->until([] { return false; }), std::runtime_error);
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 3; }));
  joined.server().send(kNote, {});
  ASSERT_TRUE(joined.harness->until([&] { return joined.recorder.messages == 1; }));
}

TEST_P(ConnectionEndings, HeartbeatsKeepAQuietConnectionAlive) {
  Joined joined(GetParam());
  joined.client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  joined.server().start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  const TimePoint before = joined.client->last_heard();
  joined.harness->pass(std::chrono::seconds(5));
  EXPECT_EQ(joined.recorder.closed + joined.door.receiver.closed, 0) << joined.recorder.why << joined.door.receiver.why;
  EXPECT_GE(joined.client->last_heard() - before, std::chrono::seconds(4));
  EXPECT_EQ(joined.recorder.messages + joined.door.receiver.messages, 0u);
}

TEST_P(ConnectionEndings, SilenceIsLoggedOnceAndThenALoss) {
  if (GetParam() == Kind::kInproc) {
    GTEST_SKIP() << "both ends share a loop; inproc_test holds the beats back instead";
  }
  const CapturedLog log;
  Joined joined(GetParam());
  joined.client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  // The server's thread stops running its loop.
  joined.harness->pass(milliseconds(990), [&] { joined.harness->turn_client(); });
  EXPECT_EQ(joined.recorder.closed, 0);
  EXPECT_EQ(log.lines(), 1) << log.text();
  EXPECT_THAT(log.text(), AllOf(HasSubstr(joined.client->peer()), HasSubstr("not been heard for 0.3 s")));
  joined.harness->pass(milliseconds(200), [&] { joined.harness->turn_client(); });
  EXPECT_EQ(joined.recorder.closed, 1);
  EXPECT_THAT(joined.recorder.why, AllOf(StartsWith("PeerLostError: "), HasSubstr("1 s")));
  EXPECT_EQ(log.lines(), 1) << log.text();
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.closed == 1; }));
}

TEST_P(ConnectionEndings, TimeForWhichThisProcessStoodStillIsNobodysSilence) {
  Joined joined(GetParam());
  joined.client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  joined.server().start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  joined.harness->pass(milliseconds(500));
  joined.harness->clock.advance(std::chrono::hours(1));
  joined.harness->turn_client();  // before it can have heard anything
  joined.harness->pass(std::chrono::seconds(2));
  EXPECT_EQ(joined.recorder.closed + joined.door.receiver.closed, 0) << joined.recorder.why << joined.door.receiver.why;
  if (GetParam() != Kind::kInproc) {
    joined.harness->pass(milliseconds(1200), [&] { joined.harness->turn_client(); });
    EXPECT_THAT(joined.recorder.why, StartsWith("PeerLostError: ")) << "what comes after it counts";
  }
}

TEST_P(ConnectionEndings, OneEndsBeatsAreEnoughForTheOther) {
  Joined joined(GetParam());
  joined.client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(1000));
  joined.server().send(kNote, {});
  joined.harness->pass(milliseconds(500));
  EXPECT_EQ(joined.recorder.closed, 0);
  EXPECT_THROW(joined.client->start_heartbeat(milliseconds(0), milliseconds(300), milliseconds(1000)), Error);
  EXPECT_THROW(joined.client->start_heartbeat(milliseconds(100), milliseconds(300), milliseconds(50)), Error);
}

TEST_P(ConnectionEndings, SayWhoTheyWereWith) {
  Joined joined(GetParam());
  const std::string medium(name(joined.server().medium()));
  EXPECT_EQ(joined.server().peer(), "worker 1 (" + medium + ")");
  EXPECT_THAT(joined.client->peer(), AllOf(StartsWith("peer at "), HasSubstr("(" + medium + ")")));
  EXPECT_EQ(joined.client->medium(), joined.server().medium());
  EXPECT_EQ(joined.client->hello().rank, 1);
  EXPECT_EQ(joined.server().hello().rank, 1);
  EXPECT_EQ(joined.server().hello().job, 7u);
}

}  // namespace
}  // namespace downpour::transport
