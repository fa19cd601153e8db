#include "csrc/ps/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/ps/member_pair.h"

namespace downpour::ps {
namespace {

using namespace member_pair;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A worker that beats so seldom that the coordinator takes it for stopped.
constexpr Duration kStopped = 30s;

// ---- joining ------------------------------------------------------------------------------------------------------

TEST(MemberJoin, HearsWhatItNeeds) {
  CoordinatorHost host({.workers = 3, .servers = 2});
  Member member(host.member(2));
  const Joined joined = member.joined();
  EXPECT_EQ(joined.incarnation, 1u);
  EXPECT_EQ(joined.workers, 3);
  EXPECT_EQ(joined.shards, 2);
  EXPECT_THAT(joined.servers, SizeIs(2));
  EXPECT_FALSE(member.fenced());
}

TEST(MemberJoin, NamesTheAddressWhereNobodyListens) {
  const Fd socket = transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly);
  MemberOptions options;
  options.rank = 3;
  options.coordinator = transport::local_address(socket.get()).text();
  options.call_deadline = kShort;
  EXPECT_THAT([&] { Member member(options); },
              ThrowsMessage<TimeoutError>(AllOf(HasSubstr("worker 3"), HasSubstr(options.coordinator))));
}

TEST(MemberJoin, RefusesAnAddressThatIsNone) {
  MemberOptions options;
  options.coordinator = "nowhere";
  EXPECT_THAT([&] { Member member(options); }, ThrowsMessage<Error>(HasSubstr("nowhere")));
  options.coordinator = "127.0.0.1:1";
  options.heartbeat = Duration::zero();
  EXPECT_THROW(Member member(options), Error);
}

TEST(MemberJoin, AStrangerHearsTheCoordinatorsWords) {
  CoordinatorHost host({.workers = 1});
  MemberOptions options = host.member(0);
  options.job = CoordinatorHost::kJob + 1;
  EXPECT_THAT([&] { Member member(options); },
              ThrowsMessage<Error>(AllOf(HasSubstr("worker 0"), HasSubstr("runs job"))));
  EXPECT_THAT([&] { Member member(host.member(1)); }, ThrowsMessage<Error>(HasSubstr("its workers are 0 to 0")));
}

// Whoever listens there is no coordinator.
class Mute final : public transport::Acceptor, public transport::Receiver {
 public:
  explicit Mute(std::uint16_t says = 0) : says_(says) {}
  transport::Admission admit(const transport::Hello&, transport::Medium) override {
    transport::Admission admission;
    admission.accepted = true;
    admission.receiver = this;
    return admission;
  }
  void on_connection(std::unique_ptr<transport::Connection> connection) override {
    connection_ = std::move(connection);
    if (says_ != 0) {
      connection_->send(says_, {});
    }
  }
  void on_message(transport::Connection&, const transport::Message&) override {}
  void on_closed(transport::Connection&, std::exception_ptr) override {}
  void end() { connection_.reset(); }

 private:
  std::uint16_t says_;
  std::unique_ptr<transport::Connection> connection_;
};

std::string join_error(std::uint16_t says) {
  LoopHost host;
  Mute mute(says);
  host.call([&] { host.listen(mute); });
  MemberOptions options;
  options.coordinator = host.address();
  options.call_deadline = kShort;
  std::string error;
  try {
    Member member(options);
  } catch (const CommError& caught) {
    error = caught.what();
  }
  host.call([&] {
    host.close_listener();
    mute.end();
  });
  return error;
}

TEST(MemberJoin, ACoordinatorThatSaysNothingIsNotWaitedForForEver) {
  EXPECT_THAT(join_error(0), AllOf(HasSubstr("worker 0"), HasSubstr("127.0.0.1:"), HasSubstr("gave no place")));
}

TEST(MemberJoin, ACoordinatorThatTalksNonsenseIsGivenUp) {
  EXPECT_THAT(join_error(9999), HasSubstr("9999"));
  EXPECT_THAT(join_error(static_cast<std::uint16_t>(MessageType::kJoined)), HasSubstr("joined"));
}

TEST(MemberJoin, ManyJoinAtOnce) {
  constexpr int kMany = 32;
  CoordinatorHost host({.workers = kMany});
  std::vector<std::future<std::unique_ptr<Member>>> joining;
  for (int rank = 0; rank < kMany; ++rank) {
    joining.push_back(
        std::async(std::launch::async, [&host, rank] { return std::make_unique<Member>(host.member(rank)); }));
  }
  for (auto& member : joining) {
    EXPECT_EQ(member.get()->joined().incarnation, 1u);
  }
}

// ---- agreeing -----------------------------------------------------------------------------------------------------

TEST(MemberAgree, WaitsForTheServers) {
  CoordinatorHost host({.workers = 1, .servers = 1});
  Member member(host.member(0));
  auto agreeing = std::async(std::launch::async, [&] { member.agree(agreement_of()); });
  host.start_server(0);
  agreeing.get();
}

TEST(MemberAgree, NamesWhatIsMissingAtTheDeadline) {
  CoordinatorHost host({.workers = 1, .servers = 1});
  Member member(host.member(0, kShort));
  EXPECT_THAT([&] { member.agree(agreement_of()); },
              ThrowsMessage<TimeoutError>(
                  AllOf(HasSubstr("worker 0"), HasSubstr("servers"), HasSubstr(host.host().address()))));
  host.start_server(0);
  member.agree(agreement_of());  // and may be asked again
}

TEST(MemberAgree, AnotherModelIsRefusedWithTheDifference) {
  Pair pair(agreement_of(4));
  EXPECT_THAT([&] { pair.second->agree(agreement_of(8)); },
              ThrowsMessage<Error>(AllOf(HasSubstr("worker 1"), HasSubstr("weight"))));
  pair.second->agree(agreement_of(4));
}

TEST(MemberAgree, SeveralWorkersWithoutAServerAreToldTheFlag) {
  CoordinatorHost host({.workers = 2});
  Member member(host.member(0));
  EXPECT_THAT([&] { member.agree(agreement_of()); }, ThrowsMessage<Error>(HasSubstr("--servers")));
}

// ---- ending --------------------------------------------------------------------------------------------------------

TEST(MemberEnd, TheDeathOfTheLauncherFailsAllCallsAtOnce) {
  Pair pair(with_lead(0));
  auto waiting = std::async(std::launch::async, [&] { pair.first->finish(); });
  auto leading = std::async(std::launch::async, [&] { pair.first->wait_minimum_clock(1); });
  pair.host.call([](Coordinator&) {});
  pair.host.die();
  EXPECT_THAT([&] { waiting.get(); },
              ThrowsMessage<PeerLostError>(AllOf(HasSubstr("worker 0"), HasSubstr("the launcher is gone"))));
  EXPECT_THROW(leading.get(), PeerLostError);
  EXPECT_THROW(pair.first->ask_leases(1), PeerLostError);
  EXPECT_THROW(pair.first->tick(1), PeerLostError);
  EXPECT_THROW(pair.first->agree(agreement_of()), PeerLostError);
  EXPECT_FALSE(pair.first->fenced());
}

TEST(MemberEnd, AnAbortFailsCallsWithItsReason) {
  Pair pair(agreement_of());
  auto waiting = std::async(std::launch::async, [&] { pair.first->finish(); });
  pair.host.call([](Coordinator& coordinator) { coordinator.abort("worker 1 ran out of memory"); });
  EXPECT_THAT([&] { waiting.get(); }, ThrowsMessage<Error>(HasSubstr("worker 0: worker 1 ran out of memory")));
  EXPECT_THAT([&] { pair.first->finish(); }, ThrowsMessage<Error>(HasSubstr("ran out of memory")));
}

TEST(MemberEnd, ALauncherThatHangsIsNoticedAndNeverWaitedForByTheDestructor) {
  CoordinatorHost host({.workers = 2, .heartbeat = 20ms});
  MemberOptions options = host.member(0);
  options.silence = kShort;
  auto member = std::make_unique<Member>(options);
  auto bystander = std::make_unique<Member>(host.member(1));
  std::promise<void> hang;
  host.host().loop().post([&] { hang.get_future().get(); });
  EXPECT_THAT([&] { member->finish(); },
              ThrowsMessage<PeerLostError>(AllOf(HasSubstr("nothing heard"), HasSubstr(options.coordinator))));
  member.reset();
  bystander.reset();
  hang.set_value();
}

// ---- fences -------------------------------------------------------------------------------------------------------

TEST(MemberFence, AStoppedWorkerNoticesAndJoinsAgainInTheSameProcess) {
  CoordinatorHost host({.workers = 1, .heartbeat = 20ms, .warn_after = 100ms, .silence = kShort});
  MemberOptions options = host.member(0);
  options.heartbeat = kStopped;
  options.silence = 2 * kStopped;
  Member member(options);
  member.agree(with_leases(4));
  EXPECT_THAT(ids(member.ask_leases(2)), ElementsAre(1, 2));
  // Waits for itself, so for ever, had it not been fenced.
  EXPECT_THAT([&] { member.wait_minimum_clock(1); },
              ThrowsMessage<FencedError>(AllOf(HasSubstr("worker 0"), HasSubstr("fenced"))));
  EXPECT_TRUE(member.fenced());
  EXPECT_THROW(member.ask_leases(1), FencedError);
  EXPECT_THROW(member.tick(1), FencedError);
  EXPECT_TRUE(host.notes("nothing was heard of it"));
  member.rejoin();
  EXPECT_FALSE(member.fenced());
  EXPECT_EQ(member.joined().incarnation, 2u);
  EXPECT_THAT(ids(member.ask_leases(4)), ElementsAre(1, 2, 3, 4));
}

// What the stopped process of the next test does. Waits for worker 1, which never comes.
int live_through_a_stop(const MemberOptions& options) {
  Member member(options);
  member.report({.step = 1});
  try {
    member.finish();
    return 1;
  } catch (const FencedError&) {
  }
  member.rejoin();
  member.report({.step = 2});
  member.finish();
  return static_cast<int>(member.joined().incarnation);
}

TEST(MemberFence, AProcessThatWasStoppedGoesOnUnderItsNextIncarnation) {
  int address[2];
  ASSERT_EQ(::pipe(address), 0);
  const pid_t child = ::fork();  // before this process has threads
  if (child == 0) {
    MemberOptions options;
    char text[64] = {};
    [[maybe_unused]] const ssize_t got = ::read(address[0], text, sizeof(text) - 1);
    options.job = CoordinatorHost::kJob;
    options.coordinator = text;
    options.heartbeat = 20ms;
    ::_exit(live_through_a_stop(options));
  }
  CoordinatorHost host({.workers = 2, .heartbeat = 20ms, .warn_after = 500ms, .silence = 1s});
  const std::string text = host.host().address();
  ASSERT_EQ(::write(address[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(host.sees_step(0, 1));
  ::kill(child, SIGSTOP);
  EXPECT_TRUE(host.notes("fenced, nothing was heard of it"));
  ::kill(child, SIGCONT);
  EXPECT_TRUE(host.sees_step(0, 2));
  host.call([](Coordinator& coordinator) { coordinator.gone(1); });
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  ::close(address[0]);
  ::close(address[1]);
}

TEST(MemberFence, ALiveWorkerDoesNotJoinAgain) {
  CoordinatorHost host({.workers = 1});
  Member member(host.member(0));
  member.rejoin();
  EXPECT_EQ(member.joined().incarnation, 1u);
}

TEST(MemberFence, ASecondMemberOfTheSameProcessEndsTheFirst) {
  CoordinatorHost host({.workers = 2});
  Member first(host.member(0));
  Member second(host.member(0));
  EXPECT_THROW(first.finish(), FencedError);
  EXPECT_EQ(second.joined().incarnation, 2u);
}

// ---- fork ---------------------------------------------------------------------------------------------------------

TEST(MemberFork, UseInAForkedChildIsNamedAndHarmsNobody) {
  CoordinatorHost host({.workers = 1});
  auto member = std::make_unique<Member>(host.member(0));
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      member->report({});
    } catch (const Error& error) {
      status = std::string(error.what()).find("forked child") != std::string::npos ? 0 : 2;
    }
    member.reset();
    ::_exit(status);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  member->report({.step = 3});
  EXPECT_TRUE(host.sees_step(0, 3));
  member->finish();
}

// ---- threads ------------------------------------------------------------------------------------------------------

TEST(MemberThreads, AnyThreadMayCallAnything) {
  constexpr int kLeases = 200;
  Agreement agreement = with_leases(kLeases);
  agreement.max_lead = 1;
  CoordinatorHost host({.workers = 1, .heartbeat = 20ms});
  Member member(host.member(0));
  member.agree(agreement);
  std::atomic<int> used{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (Leases leases; leases.end == 0; leases = member.ask_leases(3)) {
        used += static_cast<int>(leases.leases.size());
        member.leases_done(of_plan(agreement, ids(leases)));
      }
    });
  }
  threads.emplace_back([&] {
    for (std::int64_t step = 1; step <= 200; ++step) {
      member.tick(step);
      member.report({.step = step});
      member.wait_minimum_clock(step);
      EXPECT_FALSE(member.fenced());
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(used.load(), kLeases);
  member.finish();
}

TEST(MemberThreads, StartsAndStopsManyTimes) {
  CoordinatorHost host({.workers = 1});
  for (std::uint32_t life = 1; life <= 100; ++life) {
    EXPECT_EQ(Member(host.member(0)).joined().incarnation, life);
  }
}

}  // namespace
}  // namespace downpour::ps
