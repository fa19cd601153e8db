#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/transport/shm_ends.h"

// The two ends on two threads and in two processes.
namespace downpour::transport {
namespace {

using testing::StartsWith;

// One end on its own thread and loop: sends `messages` numbers and expects as many, in order.
struct Party {
  std::uint64_t sent = 0;
  std::uint64_t expected = 0;
  bool in_order = true;
  bool in_time = true;
  Log log;

  void run(Loop& loop, std::unique_ptr<Connection> connection, std::uint64_t messages, Duration spin) {
    log.keeps_texts = false;
    log.act = [this](Connection&, const Message& message) {
      in_order = in_order && Reader(message.body, "number").get<std::uint64_t>() == expected++;
    };
    const TimePoint deadline = loop.now() + kLongest;
    while (in_time && in_order && (sent < messages || expected < messages)) {
      for (int batch = 0; batch < 16 && sent < messages && connection->idle(); ++batch) {
        connection->send(100, std::as_bytes(std::span(&sent, 1)));
        ++sent;
      }
      in_time =
          loop.run_once(sent < messages && connection->idle() ? loop.now() : deadline, spin) || loop.now() < deadline;
    }
    // What the peer still waits for must be in the ring before this end closes.
    in_time = in_time && loop.run_until([&] { return connection->idle(); }, deadline);
  }
};

void exchange(std::uint32_t ring_bytes, std::uint64_t messages, Duration spin) {
  SteadyClock clock;
  Loop server_loop(clock), worker_loop(clock);
  Ends ends({.ring_bytes = ring_bytes}, Mapping::kShared);
  Party server, worker;
  auto at_server = ends.accept(server_loop, server.log);
  auto at_worker = ends.connect(worker_loop, worker.log);
  std::thread other([&] { worker.run(worker_loop, std::move(at_worker), messages, spin); });
  server.run(server_loop, std::move(at_server), messages, Duration::zero());
  other.join();
  EXPECT_TRUE(server.in_time && worker.in_time) << "a wake-up was lost";
  EXPECT_TRUE(server.in_order && worker.in_order);
  EXPECT_EQ(server.expected, messages);
  EXPECT_EQ(worker.expected, messages);
}

TEST(ShmThreads, AMillionMessagesEachWay) { exchange(8192, 1'000'000, Duration::zero()); }
TEST(ShmThreads, ThroughTheTiniestRing) { exchange(64, 100'000, Duration::zero()); }
TEST(ShmThreads, WhenOneEndSpins) { exchange(1024, 200'000, std::chrono::microseconds(20)); }

// The child counts in the window what it has pushed completely, then is killed wherever it happens to be.
[[noreturn]] void push_until_killed(Ends& ends) {
  SteadyClock clock;
  Loop loop(clock);
  Log log;
  ends.acceptor = {};
  const auto connection = ends.connect(loop, log);
  const MutableBytes window = connection->outgoing();
  for (std::uint64_t number = 0;; ++number) {
    while (!connection->idle()) {
      loop.run_once(loop.now() + kLongest);
    }
    connection->send(100, std::as_bytes(std::span(&number, 1)));
    const std::uint64_t pushed = connection->idle() ? number + 1 : number;
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(window.data())).store(pushed);
  }
}

TEST(ShmProcesses, AKilledPeerLosesNothingThatItPushed) {
  for (const std::uint64_t kill_after : {1u, 50u, 5000u}) {
    Pair pair({.ring_bytes = 1024, .to_acceptor_window_bytes = 4096});
    const pid_t child = fork();
    if (child == 0) {
      push_until_killed(pair);
    }
    pair.connector = {};
    pair.at_server.keeps_texts = false;
    std::uint64_t expected = 0;
    pair.at_server.act = [&](Connection&, const Message& message) {
      EXPECT_EQ(Reader(message.body, "number").get<std::uint64_t>(), expected++);
      if (expected == kill_after) {
        kill(child, SIGKILL);
      }
    };
    pair.server = pair.accept(pair.loop, pair.at_server);
    EXPECT_TRUE(pair.loop.run_until([&] { return pair.at_server.closed > 0; }, pair.loop.now() + kLongest));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    std::uint64_t pushed = 0;
    std::memcpy(&pushed, pair.server->incoming().data(), sizeof(pushed));
    EXPECT_GE(expected, std::max(pushed, kill_after));
    EXPECT_THAT(pair.at_server.why, StartsWith("PeerLostError"));
  }
}

}  // namespace
}  // namespace downpour::transport
