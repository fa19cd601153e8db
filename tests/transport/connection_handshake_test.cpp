// How a connection begins: admission, refusal, nobody there.
#include "tests/transport/connection_suite.h"

namespace downpour::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

using ConnectionHandshake = ConnectionSuite;
DOWNPOUR_FOR_EACH_MEDIUM(ConnectionHandshake);

// A listener with one newcomer, turned until the newcomer knows its fate.
struct Knock {
  Knock(Kind kind, const Hello& hello, const std::function<void(Knock&)>& prepare = {},
        const ConnectOptions& options = {})
      : harness(make_harness(kind)) {
    if (prepare) {
      prepare(*this);
    }
    listener = harness->listen(door);
    client = harness->connect(hello, recorder, options);
    EXPECT_TRUE(harness->until([this] { return recorder.opened + recorder.closed > 0; })) << "the handshake hangs";
    harness->settle();
  }
  CapturedLog log;
  std::unique_ptr<Harness> harness;
  Door door;
  Recorder recorder;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> client;
};

TEST_P(ConnectionHandshake, CarriesTheHelloAndTheWelcome) {
  Hello hello = hello_of_worker(3);
  hello.incarnation = 9;
  hello.schema = 0x1234;
  hello.body = pattern(2000, 1);
  hello.auth = pattern(100, 2);
  const Knock knock(GetParam(), hello, [](Knock& self) {
    self.door.answer.welcome.credits = 17;
    self.door.answer.welcome.body = pattern(3000, 5);
  });
  ASSERT_EQ(knock.recorder.opened, 1) << knock.recorder.why;
  ASSERT_EQ(knock.door.hellos.size(), 1u);
  hello.wants_shared_memory = knock.door.hellos[0].wants_shared_memory;
  EXPECT_EQ(knock.door.hellos[0], hello);
  EXPECT_EQ(knock.recorder.welcome.body, pattern(3000, 5));
  EXPECT_EQ(knock.recorder.welcome.credits, 17u);
  EXPECT_EQ(knock.client->credits(), 17u);
  EXPECT_EQ(knock.door.media[0], knock.client->medium());
}

TEST_P(ConnectionHandshake, WindowsMayBeEmpty) {
  const Knock knock(GetParam(), hello_of_worker(0), [](Knock& self) { self.door.answer.welcome = {}; });
  ASSERT_EQ(knock.recorder.opened, 1) << knock.recorder.why;
  EXPECT_THROW(knock.client->put(kNote, {}, pattern(1, 1), 0, Credit::kNone), Error);
  knock.client->put(kNote, pattern(5, 1), {}, 0, Credit::kNone);
  EXPECT_TRUE(knock.harness->until([&] { return knock.door.receiver.messages == 1; }));
}

TEST_P(ConnectionHandshake, ARefusalReachesTheNewcomerWithItsReason) {
  Knock knock(GetParam(), hello_of_worker(3), [](Knock& self) {
    self.door.answer.accepted = false;
    self.door.answer.reason = "rank 3 is of another job";
  });
  EXPECT_EQ(knock.recorder.opened, 0);
  EXPECT_EQ(knock.recorder.closed, 1);
  EXPECT_THAT(knock.recorder.why, AllOf(StartsWith("ProtocolError: peer at "), HasSubstr("rank 3 is of another job")));
  EXPECT_THAT(knock.log.text(), AllOf(HasSubstr("refused worker 3"), HasSubstr("rank 3 is of another job")));
  EXPECT_TRUE(knock.door.connections.empty());
  EXPECT_THROW(knock.client->send(kNote, {}), Error);

  knock.door.answer.accepted = true;  // the listener lives on
  Recorder next;
  const auto second = knock.harness->connect(hello_of_worker(4), next);
  EXPECT_TRUE(knock.harness->until([&] { return next.opened == 1; })) << next.why;
}

TEST_P(ConnectionHandshake, AnotherProtocolVersionIsRefusedByBothNamesAndNobodyIsAsked) {
  Hello hello = hello_of_worker(2);
  hello.protocol = kProtocolVersion + 1;
  const Knock knock(GetParam(), hello);
  EXPECT_TRUE(knock.door.hellos.empty());
  for (const std::string& said : {knock.recorder.why, knock.log.text()}) {
    EXPECT_THAT(said, HasSubstr(concat("the listener speaks version ", kProtocolVersion, " (build ", kVersion,
                                       "), the newcomer version ", kProtocolVersion + 1, " (build ", kVersion, ")")));
  }
  EXPECT_THAT(knock.recorder.why, StartsWith("ProtocolError: "));
}

TEST_P(ConnectionHandshake, AnAcceptorThatThrowsHasRefused) {
  const Knock knock(GetParam(), hello_of_worker(2),
                    [](Knock& self) { self.door.when_asked = [] { throw std::runtime_error("out of shards"); }; });
  EXPECT_THAT(knock.recorder.why, AllOf(StartsWith("ProtocolError: "), HasSubstr("out of shards")));
}

TEST_P(ConnectionHandshake, AListenerWithoutMemorySaysThatALaterAttemptMayDoBetter) {
  const Knock knock(GetParam(), hello_of_worker(2),
                    [](Knock& self) { self.door.when_asked = [] { throw std::bad_alloc(); }; });
  EXPECT_THAT(knock.recorder.why, AllOf(StartsWith("ProtocolError: "), HasSubstr(kLaterPrefix)));
}

TEST_P(ConnectionHandshake, AWindowThatCannotBeHadIsARefusal) {
  const Knock knock(GetParam(), hello_of_worker(2),
                    [](Knock& self) { self.door.answer.welcome.to_acceptor_window_bytes = 1ull << 62; });
  EXPECT_EQ(knock.recorder.opened, 0);
  EXPECT_THAT(knock.recorder.why,
              AllOf(StartsWith("ProtocolError: "), HasSubstr("461168601842"), HasSubstr(kLaterPrefix)));
  EXPECT_TRUE(knock.door.connections.empty());
}

TEST_P(ConnectionHandshake, TheNewcomerHasLimitsToo) {
  ConnectOptions options;
  options.largest_window_bytes = 1000;
  const Knock knock(GetParam(), hello_of_worker(2), {}, options);
  EXPECT_EQ(knock.recorder.opened, 0);
  EXPECT_THAT(knock.recorder.why, AllOf(StartsWith("ProtocolError: "), HasSubstr("the limit is 1000")));
  EXPECT_TRUE(knock.harness->until([&] { return knock.door.receiver.closed == 1; }));
}

TEST_P(ConnectionHandshake, TooLargeAHelloIsTheCallersMistake) {
  const auto harness = make_harness(GetParam());
  Door door;
  Recorder recorder;
  const auto listener = harness->listen(door);
  Hello hello = hello_of_worker(1);
  hello.body = pattern(kLargestHandshakeBytes, 1);
  EXPECT_THROW(harness->connect(hello, recorder), Error);
}

TEST_P(ConnectionHandshake, BeforeItIsOpenThereIsNothingToSendOn) {
  const auto harness = make_harness(GetParam());
  Door door;
  Recorder recorder;
  const auto listener = harness->listen(door);
  const auto client = harness->connect(hello_of_worker(1), recorder);
  EXPECT_THROW(client->send(kNote, {}), Error);
  EXPECT_THROW(client->put(kNote, {}, {}, 0, Credit::kNone), Error);
  EXPECT_EQ(client->credits(), 0u);
  EXPECT_TRUE(client->idle());
  EXPECT_TRUE(client->outgoing().empty());
  client->close();
  harness->settle();
  EXPECT_EQ(recorder.opened + recorder.closed, 0);
}

TEST_P(ConnectionHandshake, NewcomersThatLeaveHalfWayLeaveNothingBehind) {
  const CapturedLog log;
  const auto harness = make_harness(GetParam());
  Door door;
  const auto listener = harness->listen(door);
  for (int turns = 0; turns < 12; ++turns) {
    Recorder recorder;
    auto client = harness->connect(hello_of_worker(turns), recorder);
    for (int i = 0; i < turns; ++i) {
      i % 2 == 0 ? harness->turn_client() : harness->turn_server();
    }
    client.reset();
    harness->settle();
  }
  for (const auto& connection : door.connections) {
    EXPECT_THROW(connection->send(kNote, {}), Error) << "nobody is there any more";
  }
  Recorder last;
  const auto client = harness->connect(hello_of_worker(99), last);
  EXPECT_TRUE(harness->until([&] { return last.opened == 1; })) << last.why;
}

TEST_P(ConnectionHandshake, NobodyThereIsATimeout) {
  const auto harness = make_harness(GetParam());
  Recorder recorder;
  ConnectOptions options;
  options.deadline = std::chrono::seconds(2);
  options.peer = "server 0";
  const auto client = harness->connect(hello_of_worker(1), recorder, options);
  harness->pass(std::chrono::seconds(3));
  EXPECT_EQ(recorder.closed, 1);
  EXPECT_THAT(recorder.why, StartsWith("TimeoutError: "));
  if (GetParam() != Kind::kInproc) {
    EXPECT_THAT(recorder.why,
                AllOf(HasSubstr("server 0 at "), HasSubstr("2 s"), HasSubstr("attempts"), HasSubstr("refused")));
  }
}

TEST_P(ConnectionHandshake, TheListenerMayEndWhenItHasLetSomebodyIn) {
  Joined joined(GetParam());
  joined.listener.reset();
  joined.client->send(kNote, {});
  joined.server().send(kNote, {});
  EXPECT_TRUE(
      joined.harness->until([&] { return joined.recorder.messages == 1 && joined.door.receiver.messages == 1; }));
}

}  // namespace
}  // namespace downpour::transport
