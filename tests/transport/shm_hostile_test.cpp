#include <atomic>
#include <thread>

#include "csrc/base/random.h"
#include "tests/transport/ring_ends.h"
#include "tests/transport/shm_ends.h"

// A peer that writes what it likes wherever it can: rings, indices, flags, windows, the socket. Its connection ends with a
// ProtocolError, and nothing else happens.
namespace downpour::transport {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A server with a hostile worker and, on the same loop, a good one that must notice nothing.
struct Scene {
  Scene() {
    server = hostile.accept(loop, log);
    good_server = good.accept(loop, good_log);
    good_worker = good.connect(loop, good_worker_log);
  }
  void settle() {
    for (int turn = 0; turn < 10'000 && loop.run_once(loop.now()); ++turn) {
    }
  }
  void expect_end(std::string_view what) {
    good_worker->send(100, as_bytes("still here"));
    settle();
    EXPECT_EQ(log.closed, 1);
    EXPECT_THAT(log.why, AllOf(StartsWith("ProtocolError: worker 1 (shm): "), HasSubstr(std::string(what))));
    EXPECT_THAT(good_log.texts, testing::ElementsAre("still here"));
  }

  SteadyClock clock;
  Loop loop{clock};
  Ends hostile;
  Ends good;
  Log log, good_log, good_worker_log;
  std::unique_ptr<Connection> server, good_server, good_worker;
};

TEST(ShmHostile, AnImpossibleIndexOfTheProducer) {
  Scene scene;
  RawWorker raw(scene.hostile);
  raw.word(kTail) = 1'000'000;
  raw.ring();
  scene.expect_end("the producer's index is 1000000");
}

TEST(ShmHostile, AnImpossibleIndexOfTheConsumerIsReportedFromTheLoopAndNotFromSend) {
  Scene scene;
  RawWorker raw(scene.hostile);
  const auto control = raw.end.segment->control_to_connector();
  *reinterpret_cast<std::uint64_t*>(control.data() + kHead) = 7777;
  for (int i = 0; i < 100; ++i) {  // enough to look at the index
    scene.server->send(100, as_bytes("a message that takes room in the ring of 4096 bytes"));
  }
  EXPECT_EQ(scene.log.closed, 0);
  scene.expect_end("the consumer's index is 7777");
}

TEST(ShmHostile, BytesThatAreNoFrame) {
  Scene scene;
  RawWorker raw(scene.hostile);
  std::ranges::fill(raw.end.segment->ring_to_acceptor(), std::byte{'x'});
  raw.word(kTail) = 100;
  raw.ring();
  scene.expect_end("no frame");
}

TEST(ShmHostile, BulkOutsideTheWindow) {
  Scene scene;
  RawWorker raw(scene.hostile);
  raw.push({.type = 100, .bulk_bytes = 2, .bulk_offset = 65'535});
  scene.expect_end("outside the window");
}

TEST(ShmHostile, ABodyBeyondTheLimit) {
  Scene scene;
  RawWorker raw(scene.hostile);
  raw.say(std::string(64 * 1024 + 1, 'x'));
  scene.expect_end("exceeds the limit");
}

TEST(ShmHostile, ACreditThatWasNotGiven) {
  Scene scene;
  RawWorker raw(scene.hostile);
  for (int i = 0; i < 3; ++i) {
    raw.push({.type = 100, .takes_credit = 1});
  }
  scene.expect_end("credit");
}

TEST(ShmHostile, AHandshakeFrameAfterTheHandshake) {
  Scene scene;
  RawWorker raw(scene.hostile);
  raw.push({.type = static_cast<std::uint16_t>(FrameType::kHello)});
  scene.expect_end("handshake");
}

TEST(ShmHostile, BytesOnTheSocket) {
  Scene scene;
  RawWorker raw(scene.hostile);
  ASSERT_EQ(send(raw.end.socket.get(), "x", 1, 0), 1);
  scene.expect_end("socket");
}

TEST(ShmHostile, ADoorbellThatIsFull) {
  Scene scene;
  RawWorker raw(scene.hostile);
  for (const int bell : {raw.end.sleeps_on.get(), raw.end.rings.get()}) {
    ASSERT_EQ(eventfd_write(bell, std::numeric_limits<std::uint64_t>::max() - 1), 0);
  }
  scene.settle();
  scene.server->send(100, as_bytes("does not block"));
  raw.word(kTail) = 1'000'000;
  scene.expect_end("index");
}

TEST(ShmHostile, AFloodLeavesOthersTheirTurn) {
  Scene scene;
  RawWorker raw(scene.hostile);
  scene.log.act = [&](Connection&, const Message&) { raw.say("as fast as it is read"); };
  raw.say("first");
  scene.good_worker->send(100, as_bytes("a"));
  for (int turn = 0; turn < 10; ++turn) {
    scene.loop.run_once(scene.loop.now());
  }
  EXPECT_EQ(scene.good_log.messages, 1u);
  EXPECT_GT(scene.log.messages, 100u);
}

// Scribbles between the turns, then everywhere at once.
TEST(ShmHostile, RandomScribbles) {
  Random random(7);
  int ended = 0;
  for (int round = 0; round < 300; ++round) {
    Scene scene;
    RawWorker raw(scene.hostile);
    Segment& segment = *raw.end.segment;
    const MutableBytes targets[] = {segment.control_to_acceptor(), segment.control_to_connector(),
                                    segment.ring_to_acceptor(), segment.ring_to_connector(),
                                    segment.window_to_acceptor()};
    for (int step = 0; step < 30 && scene.log.closed == 0; ++step) {
      raw.word(kTail) += random.below(3) == 0 ? random.below(100) : 0;
      for (int scribble = 0; scribble < 5; ++scribble) {
        const MutableBytes target = targets[random.below(5)];
        target[random.below(target.size())] = static_cast<std::byte>(random.next());
      }
      raw.ring();
      scene.server->send(100, as_bytes("an answer"));
      scene.settle();
    }
    ended += scene.log.closed;
    if (scene.log.closed > 0) {
      EXPECT_THAT(scene.log.why, StartsWith("ProtocolError"));
    }
    scene.good_worker->send(100, as_bytes("still here"));
    scene.settle();
    EXPECT_EQ(scene.good_log.messages, 1u);
  }
  EXPECT_GT(ended, 200);
}

// While the server reads. Through another mapping: the races are the peer's, and what is proved is that we survive them.
TEST(ShmHostile, ScribblesWhileTheServerReads) {
  for (int round = 0; round < 20; ++round) {
    Scene scene;
    RawWorker raw(scene.hostile);
    std::atomic<bool> over{false};
    std::thread scribbler([&] {
      Random random(static_cast<std::uint64_t>(round));
      const MutableBytes ring = raw.end.segment->ring_to_acceptor();
      while (!over.load()) {
        raw.say("a good frame");
        ring[random.below(ring.size())] = static_cast<std::byte>(random.next());
      }
    });
    const TimePoint deadline = scene.loop.now() + kLongest;
    EXPECT_TRUE(scene.loop.run_until([&] { return scene.log.closed > 0; }, deadline));
    over = true;
    scribbler.join();
    EXPECT_THAT(scene.log.why, StartsWith("ProtocolError"));
  }
}

}  // namespace
}  // namespace downpour::transport
