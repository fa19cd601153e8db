#include "csrc/ps/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "csrc/base/random.h"
#include "csrc/transport/inproc.h"

namespace downpour::ps {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using transport::Role;

constexpr std::uint64_t kJob = 77;

struct Heard {
  MessageType type;
  std::vector<std::byte> body;
};

// A member's bare end of its connection.
class Peer final : public transport::Receiver {
 public:
  void on_open(transport::Connection&, const transport::Welcome&) override { open = true; }
  void on_message(transport::Connection&, const transport::Message& message) override {
    heard.push_back({static_cast<MessageType>(message.type), {message.body.begin(), message.body.end()}});
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

  void send(MessageType type) { connection->send(static_cast<std::uint16_t>(type), {}); }
  template <typename Body>
  void send(MessageType type, const Body& body) {
    Writer out;
    encode(body, out);
    connection->send(static_cast<std::uint16_t>(type), out.bytes());
  }
  std::vector<MessageType> types() const {
    std::vector<MessageType> all;
    for (const Heard& message : heard) {
      all.push_back(message.type);
    }
    return all;
  }
  // The last message of a type.
  template <typename Body>
  std::optional<Body> last(MessageType type) const {
    for (auto it = heard.rbegin(); it != heard.rend(); ++it) {
      if (it->type == type) {
        return decode<Body>(it->body);
      }
    }
    return std::nullopt;
  }

  std::unique_ptr<transport::Connection> connection;
  bool open = false, closed = false;
  std::string reason;
  std::vector<Heard> heard;
};

class Observer final : public CoordinatorObserver {
 public:
  void on_progress(int worker, const Progress& progress) override { steps.emplace_back(worker, progress.step); }
  void on_server_status(const ServerStatus& status) override { statuses.push_back(status); }
  void on_server_silent(int server) override { silent.push_back(server); }
  void on_note(const std::string& text) override { notes += text + "\n"; }
  std::vector<std::pair<int, std::int64_t>> steps;
  std::vector<ServerStatus> statuses;
  std::vector<int> silent;
  std::string notes;
};

transport::Hello hello_of(Role role, int rank, std::int64_t pid, std::uint64_t job = kJob) {
  transport::Hello hello;
  hello.job = job;
  hello.role = role;
  hello.rank = rank;
  Writer out;
  encode(JoinJob{pid}, out);
  hello.body = out.take();
  return hello;
}

Agreement agreement_of(std::int64_t width) {
  Agreement agreement;
  agreement.schema.parameters = {{"weight", {width}}};
  agreement.samples = 4;
  agreement.lease_samples = 1;
  agreement.epochs = 1;
  return agreement;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 2;

  Peer& connect(const transport::Hello& hello) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.connection = network.connect("coordinator", hello, peer);
    network.deliver_all();
    return peer;
  }
  Peer& worker(int rank, std::int64_t pid = 0) {
    return connect(hello_of(Role::kWorker, rank, pid != 0 ? pid : 100 + rank));
  }
  Peer& server(std::int64_t pid = 200) { return connect(hello_of(Role::kServer, 0, pid)); }
  void pass(Duration time) {
    for (Duration passed{}; passed < time; passed += 100ms) {
      clock.advance(100ms);
      while (loop.run_once(clock.now())) {
      }
      network.deliver_all();
    }
  }

  ManualClock clock;
  transport::Loop loop{clock};
  transport::InprocNetwork network{&loop};
  Observer observer;
  Coordinator coordinator{loop, kJob, {.workers = kWorkers, .servers = 1}, {"127.0.0.1:4000"}, observer};
  std::unique_ptr<transport::Listener> listener = network.listen("coordinator", coordinator);

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
};

TEST_F(CoordinatorTest, AWorkerIsWelcomedWithEverythingItNeedsToFindTheServers) {
  Peer& peer = worker(1);
  EXPECT_THAT(peer.types(), ElementsAre(MessageType::kJoined, MessageType::kMinimumClock));
  const auto joined = peer.last<Joined>(MessageType::kJoined);
  EXPECT_EQ(joined->incarnation, 1u);
  EXPECT_EQ(joined->workers, kWorkers);
  EXPECT_EQ(joined->shards, 1);
  EXPECT_THAT(joined->servers, ElementsAre("127.0.0.1:4000"));
}

TEST_F(CoordinatorTest, StrangersAreRefusedWithTheReason) {
  const std::vector<std::pair<transport::Hello, std::string>> strangers = {
      {hello_of(Role::kWorker, 0, 1, kJob + 1), "runs job 4d, not 4e"},
      {hello_of(Role::kWorker, 2, 1), "its workers are 0 to 1"},
      {hello_of(Role::kServer, 1, 1), "its servers are 0 to 0"},
  };
  for (const auto& [hello, reason] : strangers) {
    Peer& peer = connect(hello);
    EXPECT_FALSE(peer.open);
    EXPECT_THAT(peer.reason, HasSubstr(reason));
  }
  transport::Hello truncated = hello_of(Role::kWorker, 0, 1);
  truncated.body.pop_back();
  EXPECT_THAT(connect(truncated).reason, HasSubstr("truncated"));
  EXPECT_TRUE(worker(0).open);
}

TEST_F(CoordinatorTest, ATakenPlaceIsRefusedWithBothProcesses) {
  worker(0, 41);
  Peer& second = worker(0, 42);
  EXPECT_THAT(second.reason, HasSubstr("process 41 holds it, process 42 asks for it"));
}

TEST_F(CoordinatorTest, AgreesOnceAllServersAreReady) {
  Peer& shards = server();
  Peer& first = worker(0);
  first.send(MessageType::kOfferSchema, agreement_of(3));
  network.deliver_all();
  EXPECT_EQ(shards.last<Agreement>(MessageType::kSchema), agreement_of(3));
  EXPECT_THAT(first.types(), Not(Contains(MessageType::kSchema)));
  shards.send(MessageType::kServerReady, ServerReady{agreement_of(3).schema.hash(), {}});
  network.deliver_all();
  EXPECT_THAT(first.types(), Contains(MessageType::kSchema));
}

TEST_F(CoordinatorTest, AnotherModelIsRefusedToItsWorker) {
  Peer& first = worker(0);
  Peer& second = worker(1);
  first.send(MessageType::kOfferSchema, agreement_of(3));
  second.send(MessageType::kOfferSchema, agreement_of(4));
  network.deliver_all();
  EXPECT_THAT(second.last<Reason>(MessageType::kSchemaRefused)->text, HasSubstr("weight"));
  EXPECT_FALSE(second.closed);
  EXPECT_THAT(observer.notes, HasSubstr("worker 1 is refused"));
}

TEST_F(CoordinatorTest, BeatsReachTheObserver) {
  worker(1).send(MessageType::kBeat, Progress{.step = 9});
  ServerStatus status;
  status.server = 5;  // what it says of itself does not count
  status.snapshots = 3;
  server().send(MessageType::kServerStatus, status);
  network.deliver_all();
  EXPECT_THAT(observer.steps, ElementsAre(std::pair(1, std::int64_t{9})));
  ASSERT_THAT(observer.statuses, SizeIs(1));
  EXPECT_EQ(observer.statuses[0].server, 0);
  EXPECT_EQ(observer.statuses[0].snapshots, 3u);
}

TEST_F(CoordinatorTest, AServersLastWordsAreAnsweredWithAGoodbye) {
  Peer& shards = server();
  shards.send(MessageType::kServerStatus, ServerStatus{});
  network.deliver_all();
  EXPECT_FALSE(shards.closed);
  ServerStatus last;
  last.snapshots = 8;
  last.last = 1;
  shards.send(MessageType::kServerStatus, last);
  network.deliver_all();
  EXPECT_TRUE(shards.closed);
  EXPECT_THAT(shards.reason, IsEmpty());
  EXPECT_EQ(observer.statuses.back().snapshots, 8u);
  EXPECT_FALSE(coordinator.membership().live(server_target(0)));
  EXPECT_THAT(observer.notes, IsEmpty());
}

TEST_F(CoordinatorTest, LeasesClockAndFinishGoThroughMembership) {
  Peer& shards = server();
  Peer& peer = worker(0);
  Agreement agreement = agreement_of(3);
  agreement.max_lead = 0;
  peer.send(MessageType::kOfferSchema, agreement);
  network.deliver_all();
  shards.send(MessageType::kServerReady, ServerReady{agreement.schema.hash(), {}});
  peer.send(MessageType::kAskLeases, AskLeases{3});
  peer.send(MessageType::kTick, Tick{1});
  const std::uint64_t base = plan_base(agreement);
  peer.send(MessageType::kLeasesDone, LeasesDone{{base + 1, base + 2, base + 3}});
  network.deliver_all();
  EXPECT_THAT(peer.last<Leases>(MessageType::kLeases)->leases, SizeIs(3));
  EXPECT_EQ(peer.last<MinimumClock>(MessageType::kMinimumClock)->clock, 1);
  EXPECT_EQ(coordinator.membership().leases()->done_count(), 3u);
  peer.send(MessageType::kFinish);
  network.deliver_all();
  EXPECT_THAT(peer.types(), Not(Contains(MessageType::kFinished)));
  coordinator.gone(1);
  network.deliver_all();
  EXPECT_THAT(peer.types(), Contains(MessageType::kFinished));
  peer.connection->close();
  network.deliver_all();
  EXPECT_THAT(shards.types(), Contains(MessageType::kFinished));
  EXPECT_TRUE(coordinator.membership().finished());
}

TEST_F(CoordinatorTest, GarbageEndsThatMembersConnectionOnly) {
  Peer& other = worker(1);
  const std::vector<std::byte> junk(3, std::byte{0xff});
  const std::vector<std::uint16_t> types = {
      static_cast<std::uint16_t>(MessageType::kTick),       static_cast<std::uint16_t>(MessageType::kOfferSchema),
      static_cast<std::uint16_t>(MessageType::kLeasesDone), static_cast<std::uint16_t>(MessageType::kServerReady),
      static_cast<std::uint16_t>(MessageType::kFence),      9999};
  for (const std::uint16_t type : types) {
    Peer& peer = worker(0);
    peer.connection->send(type, junk);
    network.deliver_all();
    EXPECT_TRUE(peer.closed) << type;
    EXPECT_TRUE(peer.last<Reason>(MessageType::kAbort)) << type;
    EXPECT_FALSE(coordinator.membership().live(worker_target(0)));
  }
  EXPECT_THAT(observer.notes, HasSubstr("worker 0 is disconnected"));
  EXPECT_FALSE(other.closed);
  EXPECT_EQ(coordinator.membership().incarnation(0), types.size());
}

TEST_F(CoordinatorTest, RandomMessagesNeverHurtTheOthers) {
  Random random(3);
  Peer& other = worker(1);
  for (int round = 0; round < 2000; ++round) {
    Peer& peer = random.below(4) == 0 ? server() : worker(0);
    for (int i = 0; i < 5 && !peer.closed; ++i) {
      std::vector<std::byte> body(random.below(40));
      for (std::byte& byte : body) {
        byte = static_cast<std::byte>(random.below(4) == 0 ? random.next() : 0);
      }
      peer.connection->send(static_cast<std::uint16_t>(120 + random.below(90)), body);
      network.deliver_all();
    }
    peer.connection.reset();
    network.deliver_all();
  }
  EXPECT_FALSE(other.closed);
  other.send(MessageType::kBeat, Progress{.step = 1});
  network.deliver_all();
  EXPECT_THAT(observer.steps, Contains(std::pair(1, std::int64_t{1})));
}

TEST_F(CoordinatorTest, ASilentWorkerIsFencedAndToldSo) {
  Peer& shards = server();
  Peer& peer = worker(0);
  shards.connection->start_heartbeat(100ms, 1h, 2h);
  pass(9900ms);
  EXPECT_FALSE(peer.closed);
  pass(200ms);
  EXPECT_TRUE(peer.closed);
  EXPECT_EQ(peer.last<Fence>(MessageType::kFence)->below_incarnation, 2u);
  EXPECT_EQ(shards.last<Fence>(MessageType::kFence)->worker, 0);
  EXPECT_FALSE(shards.closed);
  EXPECT_THAT(observer.notes, HasSubstr("worker 0 (process 100) has not been heard for"));
  EXPECT_EQ(worker(0).last<Joined>(MessageType::kJoined)->incarnation, 2u);  // the same process
}

TEST_F(CoordinatorTest, ASilentServerIsReportedToTheHost) {
  server();
  pass(10100ms);
  EXPECT_THAT(observer.silent, ElementsAre(0));
  coordinator.process_ended(server_target(0));
  EXPECT_TRUE(server(201).open);
}

TEST_F(CoordinatorTest, BeatsOfTheConnectionCountAsHeard) {
  Peer& peer = worker(0);
  peer.connection->start_heartbeat(100ms, 1h, 2h);
  pass(20s);
  EXPECT_FALSE(peer.closed);
  EXPECT_THAT(observer.notes, IsEmpty());
}

TEST_F(CoordinatorTest, AProcessThatEndedFreesItsPlaceBeforeItsConnectionEnds) {
  Peer& former = worker(0, 41);
  coordinator.process_ended(worker_target(0));
  EXPECT_EQ(worker(0, 42).last<Joined>(MessageType::kJoined)->incarnation, 2u);
  EXPECT_TRUE(former.closed);
  coordinator.process_ended(worker_target(0));
  coordinator.process_ended(worker_target(0));  // once more does nothing
  EXPECT_FALSE(coordinator.membership().live(worker_target(0)));
}

TEST_F(CoordinatorTest, ACutIsALossAndAGoodbyeIsNot) {
  Peer& shards = server();
  worker(0);
  network.cut(1);
  network.deliver_all();
  EXPECT_THAT(shards.types(), Contains(MessageType::kFence));
  EXPECT_THAT(observer.notes, HasSubstr("worker 0"));
  observer.notes.clear();
  worker(1).connection->close();
  network.deliver_all();
  EXPECT_EQ(shards.last<Fence>(MessageType::kFence)->worker, 0);
  EXPECT_THAT(observer.notes, IsEmpty());
}

TEST_F(CoordinatorTest, TheSameProcessMayJoinAgainAndItsFormerConnectionHearsTheFence) {
  Peer& former = worker(0, 41);
  Peer& next = worker(0, 41);
  EXPECT_EQ(former.last<Fence>(MessageType::kFence)->below_incarnation, 2u);
  EXPECT_TRUE(former.closed);
  EXPECT_EQ(next.last<Joined>(MessageType::kJoined)->incarnation, 2u);
  EXPECT_FALSE(next.closed);
}

TEST_F(CoordinatorTest, AnAbortReachesThoseHereAndThoseWhoCome) {
  Peer& shards = server();
  Peer& peer = worker(0);
  coordinator.abort("worker 1 failed: no such file");
  network.deliver_all();
  EXPECT_EQ(peer.last<Reason>(MessageType::kAbort)->text, "worker 1 failed: no such file");
  EXPECT_EQ(shards.last<Reason>(MessageType::kAbort)->text, "worker 1 failed: no such file");
  EXPECT_THAT(worker(1).reason, HasSubstr("the job was aborted: worker 1 failed: no such file"));
}

TEST_F(CoordinatorTest, TheAddressesMustFitTheServers) {
  EXPECT_THROW(Coordinator(loop, kJob, {.workers = 1, .servers = 2}, {"127.0.0.1:1"}, observer), Error);
}

TEST(CoordinatorEnd, MembersHearAGoodbyeWhenItGoes) {
  ManualClock clock;
  transport::Loop loop(clock);
  transport::InprocNetwork network(&loop);
  Observer observer;
  auto coordinator =
      std::make_unique<Coordinator>(loop, kJob, MembershipOptions{}, std::vector<std::string>{}, observer);
  auto listener = network.listen("coordinator", *coordinator);
  Peer peer;
  peer.connection = network.connect("coordinator", hello_of(Role::kWorker, 0, 1), peer);
  network.deliver_all();
  ASSERT_TRUE(peer.open);
  listener.reset();
  coordinator.reset();
  network.deliver_all();
  EXPECT_TRUE(peer.closed);
  EXPECT_THAT(peer.reason, IsEmpty());
}

}  // namespace
}  // namespace downpour::ps
