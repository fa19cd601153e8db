#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "csrc/base/log.h"
#include "tests/ps/cluster.h"
#include "tests/ps/ledger.h"

// A shard against peers that say what no client of ours would, and against disks that fail.
namespace downpour::ps {
namespace {

using testing::HasSubstr;

std::vector<std::string> g_log;  // a LogSink has no context of its own

class Log {
 public:
  Log() {
    g_log.clear();
    set_log_sink([](LogLevel level, std::string_view line) {
      g_log.push_back(concat(level == LogLevel::kError ? "error: " : "", line));
    });
  }
  ~Log() { set_log_sink(nullptr); }
  int count(const std::string& text) const {
    return static_cast<int>(std::count_if(
        g_log.begin(), g_log.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
};

// A worker's end without a client: sends what it is told, keeps what comes.
class Peer final : public transport::Receiver {
 public:
  Peer(Cluster& cluster, int rank, std::uint32_t incarnation, std::uint64_t attempt, std::int32_t shard = 0)
      : Peer(cluster, hello(cluster, rank, incarnation, attempt, shard), cluster.address(0)) {}
  Peer(Cluster& cluster, const transport::Hello& hello) : Peer(cluster, hello, cluster.address(0)) {}
  Peer(Cluster& cluster, const transport::Hello& hello, const std::string& address) : cluster_(cluster) {
    connection = cluster_.network.connect(address, hello, *this);
    cluster_.note_link(cluster_.newest_link(), 0);
    cluster_.deliver_all();
  }
  static transport::Hello hello(Cluster& cluster, int rank, std::uint32_t incarnation, std::uint64_t attempt,
                                std::int32_t shard) {
    transport::Hello hello;
    hello.job = Cluster::kJob;
    hello.rank = rank;
    hello.incarnation = incarnation;
    hello.schema = cluster.agreement.schema.hash();
    Writer body;
    encode(JoinShard{shard, 4, attempt}, body);
    hello.body = body.take();
    return hello;
  }

  void on_open(transport::Connection&, const transport::Welcome& given) override {
    welcome = decode<ShardWelcome>(given.body);
  }
  void on_message(transport::Connection&, const transport::Message& message) override {
    types.push_back(static_cast<MessageType>(message.type));
    if (types.back() == MessageType::kAck) {
      acks.push_back(decode<Ack>(message.body));
    }
    if (types.back() == MessageType::kState) {
      state = decode<ShardState>(message.body);
    }
  }
  void on_closed(transport::Connection&, std::exception_ptr why) override {
    closed = true;
    try {
      if (why != nullptr) {
        std::rethrow_exception(why);
      }
    } catch (const std::exception& error) {
      reason = error.what();
    }
  }

  template <typename T>
  void send(MessageType type, const T& message, Bytes bulk = {}, std::uint64_t offset = 0) {
    Writer out;
    encode(message, out);
    send_raw(type, out.bytes(), bulk, offset);
  }
  void send_raw(MessageType type, Bytes body, Bytes bulk = {}, std::uint64_t offset = 0) {
    connection->put(static_cast<std::uint16_t>(type), body, bulk, offset,
                    bulk.empty() || connection->credits() == 0 ? transport::Credit::kNone : transport::Credit::kTake);
    cluster_.deliver_all();
  }
  // A push of ones to everything, changed by `change` before it leaves.
  void push(std::uint64_t sequence, const std::function<void(PushFragment&, std::vector<float>&)>& change = nullptr) {
    PushFragment fragment;
    fragment.sequence = sequence;
    fragment.last = 1;
    fragment.header.groups.assign(cluster_.agreement.schema.groups, Hyper{.lr = -1});
    fragment.header.present.assign(2, true);
    std::vector<float> gradient(64, 1);
    if (change) {
      change(fragment, gradient);
    }
    send(MessageType::kPush, fragment, std::as_bytes(std::span(gradient)), fragment.slot * std::uint64_t{256});
  }
  int count(MessageType type) const { return static_cast<int>(std::count(types.begin(), types.end(), type)); }

  std::unique_ptr<transport::Connection> connection;
  ShardWelcome welcome;
  ShardState state;
  std::vector<MessageType> types;
  std::vector<Ack> acks;
  bool closed = false;
  std::string reason;

 private:
  Cluster& cluster_;
};

struct Ready {
  explicit Ready(ClusterOptions options = {.schema = ledger_schema()})
      : cluster(std::move(options)), worker(cluster, 0) {
    worker.initialise();
    cluster.settle_snapshots();
    cluster.deliver_all();
  }
  float value() { return Ready::value_of(cluster.server().shard()); }
  static float value_of(const Shard& shard) {
    float value;
    std::memcpy(&value, shard.values().data(), sizeof(value));
    return value;
  }
  // The other worker's push still goes through and changes every value by one.
  void expect_lives() {
    worker.pull();
    const float before = worker.value();
    worker.push();
    worker.pull();
    EXPECT_EQ(worker.value(), before + 1);
  }

  Log log;
  Cluster cluster;
  TestWorker worker;
};

TEST(ShardServer, TellsEachNewcomerWhereItStands) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  EXPECT_EQ(peer.welcome.slots, 4u);
  EXPECT_EQ(peer.welcome.buffer_bytes, 256u);
  EXPECT_EQ(peer.welcome.keeps_snapshots, 1);
  ASSERT_GE(peer.types.size(), 2u);
  EXPECT_EQ(peer.types[0], MessageType::kState);
  EXPECT_EQ(peer.types[1], MessageType::kDurable);
  EXPECT_EQ(peer.state.initialised, 1);
  peer.push(0);
  EXPECT_EQ(peer.acks.size(), 1u);
  Peer again(ready.cluster, 1, 1, 2);
  EXPECT_EQ(again.state.next_sequence, 1u);
  EXPECT_EQ(again.state.version.version, 1u);
}

TEST(ShardServer, RefusesWhoDoesNotBelongHereAndSaysWhy) {
  Ready ready;
  const auto hello = [&] {
    transport::Hello good;
    good.job = Cluster::kJob;
    good.rank = 1;
    good.incarnation = 1;
    good.schema = ready.cluster.agreement.schema.hash();
    Writer body;
    encode(JoinShard{0, 4, 1}, body);
    good.body = body.take();
    return good;
  };
  const auto expect_refused = [&](const transport::Hello& bad, const std::string& why) {
    Peer peer(ready.cluster, bad);
    EXPECT_TRUE(peer.closed);
    EXPECT_THAT(peer.reason, HasSubstr(why));
    EXPECT_GE(ready.log.count(why), 1) << why;
  };
  transport::Hello bad = hello();
  bad.job = 99;
  expect_refused(bad, "another job");
  bad = hello();
  bad.schema = 99;
  expect_refused(bad, "another model");
  bad = hello();
  bad.rank = VerdictTable::kMaxWorkers;
  expect_refused(bad, "rank 0 to");
  bad = hello();
  bad.role = transport::Role::kServer;
  expect_refused(bad, "expected a worker");
  bad = hello();
  Writer body;
  encode(JoinShard{1, 4, 1}, body);
  bad.body = body.take();
  expect_refused(bad, "this is shard 0 of 1, shard 1 was asked for");
  bad.body.clear();
  expect_refused(bad, "truncated");
  EXPECT_FALSE(Peer(ready.cluster, hello()).closed);
  ready.expect_lives();
}

TEST(ShardServer, TheNewerConnectionOfALifeWins) {
  Ready ready;
  Peer first(ready.cluster, 1, 1, 10);
  Peer second(ready.cluster, 1, 1, 11);
  EXPECT_TRUE(first.closed);
  EXPECT_FALSE(second.closed);
  Peer late(ready.cluster, 1, 1, 5);
  EXPECT_TRUE(late.closed);
  EXPECT_THAT(late.reason, HasSubstr("newer connection"));
  second.push(0);
  EXPECT_EQ(second.acks.size(), 1u);
}

TEST(ShardServer, APartialPushOfALostConnectionIsDiscarded) {
  Ready ready;
  Peer first(ready.cluster, 1, 1, 1);
  first.push(0, [](PushFragment& fragment, auto&) { fragment.last = 0; });
  first.connection->close();
  ready.cluster.deliver_all();
  Peer second(ready.cluster, 1, 1, 2);
  second.push(0);
  EXPECT_EQ(ready.value(), 1);
}

TEST(ShardServer, ResumeForgetsWhatHasArrivedAndDeclaresLosses) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  peer.push(0, [](PushFragment& fragment, auto&) { fragment.last = 0; });
  peer.send(MessageType::kResume, Resume{3});
  peer.push(3);
  EXPECT_EQ(ready.value(), 1);
  EXPECT_EQ(ready.cluster.server().shard().counters().lost, 3u);
  EXPECT_EQ(ready.log.count("worker 1 could not replay its pushes 0 to 2: 3 lost"), 1);
  peer.send(MessageType::kResume, Resume{1});  // the past: nothing
  peer.push(4);
  EXPECT_EQ(ready.value(), 2);
}

TEST(ShardServer, AnUnknownPullerWaitsForNothingThatIsNotThere) {
  Cluster cluster({.schema = ledger_schema()});
  Peer peer(cluster, 1, 1, 1);
  const std::uint32_t credits = peer.connection->credits();
  peer.send(MessageType::kPull, Pull{1});
  peer.send(MessageType::kPull, Pull{2});
  EXPECT_EQ(peer.count(MessageType::kValues), 0);
  EXPECT_EQ(peer.connection->credits(), credits);  // what is parked holds none
  TestWorker worker(cluster, 0);
  worker.initialise();
  cluster.deliver_all();
  EXPECT_EQ(peer.count(MessageType::kValues), 1);  // the newest request
  EXPECT_EQ(peer.count(MessageType::kInitialised), 1);
}

// Between admission, which another thread may do, and the shard's own turn.
class LateDoor final : public transport::Acceptor {
 public:
  explicit LateDoor(ShardServer& server) : server_(server) {}
  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override {
    return server_.admit(hello, medium);
  }
  void on_connection(std::unique_ptr<transport::Connection> connection) override {
    server_.fence({connection->hello().rank, connection->hello().incarnation + 1});
    server_.on_connection(std::move(connection));
  }

 private:
  ShardServer& server_;
};

TEST(ShardServer, AnArrivalWhoseLifeHasEndedIsDropped) {
  Ready ready;
  LateDoor door(ready.cluster.server());
  const auto listener = ready.cluster.network.listen("late", door);
  Peer peer(ready.cluster, Peer::hello(ready.cluster, 1, 1, 1, 0), "late");
  EXPECT_TRUE(peer.closed);
  EXPECT_EQ(peer.count(MessageType::kState), 0);
  ready.expect_lives();
}

TEST(ShardServer, AnAnswerThatWaitsKeepsItsValuesWhenAPushComes) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  const int link = ready.cluster.newest_link();
  ready.cluster.hold(link, 1);
  peer.send(MessageType::kPull, Pull{1});
  ready.worker.push();
  ready.worker.client.settle();
  EXPECT_EQ(ready.value(), 1);
  ready.cluster.release(link, 1);
  ready.cluster.deliver_all();
  ASSERT_EQ(peer.count(MessageType::kValues), 1);
  float pulled = -1;
  std::memcpy(&pulled, peer.connection->incoming().data(), sizeof(pulled));
  EXPECT_EQ(pulled, 0);
}

TEST(ShardServer, RepeatsAreAnsweredWithTheOldVerdictAndChangeNothing) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  peer.push(0);
  peer.push(0);
  PushFragment header;
  header.last = 1;
  peer.send(MessageType::kPush, header);
  ASSERT_EQ(peer.acks.size(), 3u);
  EXPECT_FALSE(peer.acks[0].result.repeated);
  EXPECT_TRUE(peer.acks[1].result.repeated);
  EXPECT_TRUE(peer.acks[2].result.repeated);
  EXPECT_EQ(ready.value(), 1);
}

TEST(ShardServer, CreditsComeBack) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  const std::uint32_t all = peer.connection->credits();
  for (int i = 0; i < 200; ++i) {
    peer.push(static_cast<std::uint64_t>(i));
  }
  EXPECT_EQ(peer.connection->credits(), all);
}

// Each case: what a good peer never sends. That connection is closed with a reason in the log; nothing else changes.
TEST(ShardServer, WhatBreaksTheProtocolEndsThatConnectionOnly) {
  using Mistake = std::function<void(Peer&)>;
  const std::vector<std::pair<std::string, Mistake>> mistakes = {
      {"a gap", [](Peer& peer) { peer.push(1); }},
      {"a slot that is not there",
       [](Peer& peer) {
         PushFragment fragment;
         fragment.slot = 4;
         peer.send(MessageType::kPush, fragment);
       }},
      {"a slot that overflows",
       [](Peer& peer) {
         PushFragment fragment;
         fragment.slot = std::numeric_limits<std::uint32_t>::max();
         peer.send(MessageType::kPush, fragment);
       }},
      {"bytes in another slot",
       [](Peer& peer) {
         const std::vector<float> gradient(16, 1);
         peer.send(MessageType::kPush, PushFragment{}, std::as_bytes(std::span(gradient)), 256);
       }},
      {"bytes over the end of the slot",
       [](Peer& peer) {
         const std::vector<float> gradient(64, 1);
         peer.send(MessageType::kPush, PushFragment{}, std::as_bytes(std::span(gradient)), 64);
       }},
      {"too few groups", [](Peer& peer) { peer.push(0, [](auto& f, auto&) { f.header.groups.pop_back(); }); }},
      {"too many slices", [](Peer& peer) { peer.push(0, [](auto& f, auto&) { f.header.present.push_back(false); }); }},
      {"an absent slice that came",
       [](Peer& peer) { peer.push(0, [](auto& f, auto&) { f.header.present[1] = false; }); }},
      {"a slice that did not come",
       [](Peer& peer) { peer.push(0, [](auto&, auto& gradient) { gradient.resize(40); }); }},
      {"a hyper-parameter of another rule's range",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.header.groups[0].momentum = 0.9; });  // no buffer for it
       }},
      {"a rate that is no number",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.header.groups[0].lr = std::numeric_limits<double>::quiet_NaN(); });
       }},
      {"a lease beyond the limit", [](Peer& peer) { peer.push(0, [](auto& f, auto&) { f.header.lease = ~0ull; }); }},
      {"another push in the midst",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.last = 0; });
         peer.push(0, [](auto& f, auto&) { f.slot = 1; });
       }},
      {"bytes twice",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.last = 0; });
         peer.push(0);
       }},
      {"initial values in the midst of a push",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.last = 0; });
         const std::vector<float> values(64, std::numeric_limits<float>::quiet_NaN());
         peer.send(MessageType::kInitialise, Initialise{1, {0, 0}}, std::as_bytes(std::span(values)), 0);
       }},
      {"bulk where none belongs",
       [](Peer& peer) {
         peer.push(0, [](auto& f, auto&) { f.last = 0; });
         const std::vector<float> values(64, std::numeric_limits<float>::quiet_NaN());
         peer.send(MessageType::kPull, Pull{1}, std::as_bytes(std::span(values)), 0);
       }},
      {"initial values with a gap",
       [](Peer& peer) {
         const std::vector<float> values(16, 1);
         peer.send(MessageType::kInitialise, Initialise{0, {}}, std::as_bytes(std::span(values)), 64);
       }},
      {"too few initial values",
       [](Peer& peer) {
         peer.send(MessageType::kInitialise, Initialise{1, {0, 0}});
       }},
      {"a skip beyond the limit", [](Peer& peer) { peer.send(MessageType::kResume, Resume{~0ull}); }},
      {"a truncated body", [](Peer& peer) { peer.send_raw(MessageType::kPush, as_bytes("abc")); }},
      {"a message for workers", [](Peer& peer) { peer.send(MessageType::kAck, Ack{}); }},
      {"an unknown message", [](Peer& peer) { peer.send_raw(static_cast<MessageType>(5000), {}); }},
  };
  for (const auto& [what, mistake] : mistakes) {
    SCOPED_TRACE(what);
    Ready ready;
    Peer peer(ready.cluster, 1, 1, 1);
    const Shard::State before = state_of(ready.cluster.server().shard());
    mistake(peer);
    EXPECT_TRUE(peer.closed);
    EXPECT_EQ(ready.log.count("closed"), 1);
    EXPECT_TRUE(state_of(ready.cluster.server().shard()) == before);
    ready.expect_lives();
  }
}

TEST(ShardServer, APeerThatReadsNothingIsNotServedForEver) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  ready.cluster.hold(ready.cluster.newest_link(), 1);
  PushFragment header;
  header.last = 1;
  peer.push(0);
  for (int i = 0; i < 70000 && ready.log.count("unread") == 0; ++i) {
    peer.send(MessageType::kPush, header);
  }
  EXPECT_EQ(ready.log.count("left 65537 messages unread"), 1);
  ready.expect_lives();
}

TEST(ShardServer, PushesBeforeTheInitialValuesAreRefused) {
  const Log log;
  Cluster cluster({.schema = ledger_schema()});
  Peer peer(cluster, 1, 1, 1);
  peer.push(0);
  EXPECT_TRUE(peer.closed);
  EXPECT_EQ(log.count("before the initial values"), 1);
}

// ---- snapshots -------------------------------------------------------------------------------------------------------

void run_until(Cluster& cluster, const std::function<bool()>& done) {
  cluster.loop.run_until(done, cluster.clock.now() + std::chrono::seconds(20));
}

TEST(ShardServer, WritesASnapshotRightAfterTheInitialValuesAndThenEveryInterval) {
  Ready ready({.schema = ledger_schema(), .when = {{}, std::chrono::seconds(30), 1e9, 1}});
  EXPECT_EQ(ready.cluster.server().snapshots_written(), 1u);
  ready.worker.push();
  ready.worker.client.settle();
  ready.cluster.clock.advance(std::chrono::seconds(29));
  ready.cluster.loop.run_once(ready.cluster.clock.now());
  EXPECT_EQ(ready.cluster.server().snapshots_written(), 1u);
  ready.cluster.clock.advance(std::chrono::seconds(2));
  run_until(ready.cluster, [&] { return ready.cluster.server().snapshots_written() == 2; });
  EXPECT_EQ(ready.cluster.server().snapshots_written(), 2u);
  ready.cluster.clock.advance(std::chrono::seconds(100));  // nothing has changed
  ready.cluster.loop.run_once(ready.cluster.clock.now());
  ready.cluster.restart();
  ready.worker.pull();
  EXPECT_EQ(ready.worker.value(), 1);
  EXPECT_EQ(ready.worker.client.counters().replayed, 0u);
}

TEST(ShardServer, WritesASnapshotWhenAWorkersPushesFillHalfOfItsSlots) {
  Ready ready({.schema = ledger_schema(), .when = {{}, std::chrono::hours(1), 0.5, 1}});
  Peer peer(ready.cluster, 1, 1, 1);  // four slots
  peer.push(0);
  EXPECT_EQ(ready.cluster.server().snapshots_written(), 1u);
  const int durable_before = peer.count(MessageType::kDurable);
  peer.push(1);
  run_until(ready.cluster, [&] { return ready.cluster.server().snapshots_written() == 2; });
  EXPECT_EQ(ready.cluster.server().snapshots_written(), 2u);
  ready.cluster.deliver_all();
  EXPECT_EQ(peer.count(MessageType::kDurable), durable_before + 1);
}

// What a disk has that is full for a while.
class FullDisk final : public Files {
 public:
  explicit FullDisk(Files& files) : files_(files) {}
  std::unique_ptr<File> create(const std::filesystem::path& path) override {
    DOWNPOUR_CHECK(!full, "'", path.string(), "': write: No space left on device");
    return files_.create(path);
  }
  std::vector<std::byte> read(const std::filesystem::path& path, std::size_t limit) override {
    return files_.read(path, limit);
  }
  bool exists(const std::filesystem::path& path) override { return files_.exists(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { files_.rename(from, to); }
  void remove(const std::filesystem::path& path) override { files_.remove(path); }
  std::vector<std::string> list(const std::filesystem::path& folder) override { return files_.list(folder); }
  void sync_folder(const std::filesystem::path& folder) override { files_.sync_folder(folder); }
  void create_folders(const std::filesystem::path& folder) override { files_.create_folders(folder); }
  std::atomic<bool> full{false};

 private:
  Files& files_;
};

TEST(ShardServer, AFullDiskStopsNothingAndIsSaidOnce) {
  const Log log;
  MemoryFiles memory;
  FullDisk disk(memory);
  Cluster cluster({.schema = ledger_schema()});
  cluster.crash();
  cluster.start(0, &disk);
  TestWorker worker(cluster, 0);
  worker.initialise();
  cluster.settle_snapshots();
  disk.full = true;
  for (int i = 1; i <= 3; ++i) {
    worker.push();
    worker.client.settle();
    cluster.server().save();
  }
  EXPECT_THAT(cluster.server().snapshot_error(), HasSubstr("No space left"));
  EXPECT_EQ(log.count("error: shard 0: no snapshot could be written"), 1);
  EXPECT_EQ(cluster.server().snapshots_written(), 1u);
  disk.full = false;
  cluster.server().save();
  EXPECT_EQ(cluster.server().snapshot_error(), "");
  EXPECT_EQ(log.count("snapshots are written again"), 1);
  cluster.crash();
  cluster.start(0, &disk);
  worker.pull();
  EXPECT_EQ(worker.value(), 3);
}

TEST(ShardServer, GenerationsGrowAtEveryRestoreEvenFromTheSameSnapshot) {
  Ready ready;
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    ready.cluster.restart();
    EXPECT_EQ(ready.cluster.server().shard().version().generation, generation);
  }
}

TEST(ShardServer, AFenceReachesAllMessagesThatFollowIt) {
  Ready ready;
  Peer peer(ready.cluster, 1, 1, 1);
  peer.push(0, [](PushFragment& fragment, auto&) { fragment.last = 0; });
  ready.cluster.server().fence({1, 2});
  PushFragment rest;
  rest.last = 1;
  rest.header.groups.resize(2);
  rest.header.present = {true, true};
  Writer out;
  encode(rest, out);
  peer.connection->send(static_cast<std::uint16_t>(MessageType::kPush), out.bytes());
  ready.cluster.network.deliver(ready.cluster.newest_link(), 0);  // before the server's loop has turned
  EXPECT_EQ(ready.value(), 0);
  ready.cluster.deliver_all();
  EXPECT_TRUE(peer.closed);
  Peer zombie(ready.cluster, 1, 1, 2);
  EXPECT_THAT(zombie.reason, HasSubstr("fenced: "));
  Peer next(ready.cluster, 1, 2, 1);
  next.push(0);
  EXPECT_EQ(ready.value(), 1);
}

TEST(ShardServer, LooksForTheRestOfAPartialPushOnly) {
  Ready ready;
  EXPECT_EQ(ready.cluster.server().spin(), Duration::zero());
  Peer peer(ready.cluster, 1, 1, 1);
  peer.push(0, [](PushFragment& fragment, auto&) { fragment.last = 0; });
  EXPECT_GT(ready.cluster.server().spin(), Duration::zero());
  PushFragment rest;
  rest.last = 1;
  rest.header.groups.resize(2);
  rest.header.present = {true, true};
  peer.send(MessageType::kPush, rest);
  EXPECT_EQ(ready.cluster.server().spin(), Duration::zero());
}

}  // namespace
}  // namespace downpour::ps
