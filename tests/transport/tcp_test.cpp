// What only TCP has: addresses, sockets, retries, shared memory instead.
#include "csrc/transport/tcp.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "csrc/transport/shm.h"
#include "tests/transport/connection_suite.h"
#include "tests/transport/page_ends.h"
#include "tests/transport/raw_peer.h"

namespace downpour::transport {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kLocal = Exposure::kLoopbackOnly;

// A listener and its loop under the machine's own clock; both sides are turned by one thread.
struct Place {
  explicit Place(SharedMemory shared_memory = SharedMemory::kNever, const ListenOptions& options = {},
                 const char* host = "127.0.0.1") {
    Fd socket = bind_socket({host, 0}, kLocal);
    address = local_address(socket.get());
    listener = listen_tcp(loop, std::move(socket), door, shared_memory, kLocal, options);
  }
  std::unique_ptr<Connection> connect(Recorder& recorder, SharedMemory shared_memory = SharedMemory::kNever,
                                      const ConnectOptions& options = {}) {
    return connect_tcp(loop, address, hello_of_worker(1), recorder, shared_memory, kLocal, options);
  }
  bool until(const std::function<bool()>& done) { return loop.run_until(done, clock.now() + seconds(120)); }

  SteadyClock clock;
  Loop loop{clock};
  Door door;
  Address address;
  std::unique_ptr<Listener> listener;
};

int option(int socket, int level, int which) {
  int value = -1;
  socklen_t size = sizeof(value);
  ::getsockopt(socket, level, which, &value, &size);
  return value;
}

// The descriptors of this process that are connected TCP sockets.
std::set<int> connected_sockets() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0) {
      found.insert(fd);
    }
  }
  return found;
}

TEST(TcpAddress, OffLoopbackIsRefusedUnlessSaidOutLoud) {
  EXPECT_THROW(bind_socket({"0.0.0.0", 0}, kLocal), AuthError);
  EXPECT_THROW(bind_socket({"::", 0}, kLocal), AuthError);
  EXPECT_NO_THROW(bind_socket({"127.0.0.1", 0}, kLocal));
  EXPECT_NO_THROW(bind_socket({"::1", 0}, kLocal));
  EXPECT_NO_THROW(bind_socket({"localhost", 0}, kLocal));

  Place place;
  Recorder recorder;
  EXPECT_THROW(connect_tcp(place.loop, {"192.0.2.1", 1}, hello_of_worker(1), recorder, SharedMemory::kNever, kLocal),
               AuthError);
  Fd everywhere = bind_socket({"0.0.0.0", 0}, Exposure::kInsecure);
  EXPECT_THROW(listen_tcp(place.loop, std::move(everywhere), place.door, SharedMemory::kNever, kLocal), AuthError);
}

TEST(TcpAddress, ANameThatDoesNotResolveSaysSo) {
  Place place;
  Recorder recorder;
  try {
    connect_tcp(place.loop, {"no such host", 1}, hello_of_worker(1), recorder, SharedMemory::kNever, kLocal);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such host:1 does not resolve"));
  }
}

TEST(TcpAddress, APortInUseIsNamed) {
  const Fd first = bind_socket({"127.0.0.1", 0}, kLocal);
  const Address taken = local_address(first.get());
  try {
    bind_socket(taken, kLocal);
    FAIL() << "SO_REUSEPORT must not be set";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(taken.text()), HasSubstr("in use"), HasSubstr("--port")));
  }
}

TEST(TcpAddress, APortIsFreeAgainAtOnce) {
  Address address{"127.0.0.1", 0};
  for (int restart = 0; restart < 200; ++restart) {
    Place place;
    Fd socket = bind_socket(address, kLocal);
    address = local_address(socket.get());
    place.listener = listen_tcp(place.loop, std::move(socket), place.door, SharedMemory::kNever, kLocal);
    place.address = address;
    Recorder recorder;
    const auto client = place.connect(recorder);
    ASSERT_TRUE(place.until([&] { return recorder.opened == 1 && place.door.connections.size() == 1; }));
    place.door.connections.clear();  // the listening side closes first: its end is left in TIME_WAIT
    ASSERT_TRUE(place.until([&] { return recorder.closed == 1; }));
  }
}

TEST(TcpSockets, HaveTheOptionsThatNoticeADeadLink) {
  Place place;
  Recorder recorder;
  const auto client = place.connect(recorder);
  ASSERT_TRUE(place.until([&] { return recorder.opened == 1 && place.door.connections.size() == 1; }));
  client->start_heartbeat(std::chrono::milliseconds(100), seconds(2), seconds(10));
  place.door.connections[0]->start_heartbeat(std::chrono::milliseconds(100), seconds(2), seconds(10));
  const auto sockets = connected_sockets();
  EXPECT_EQ(sockets.size(), 2u);
  for (const int socket : sockets) {
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPIDLE), 1);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPINTVL), 1);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPCNT), 3);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 10'000);
    EXPECT_EQ(option(socket, SOL_SOCKET, SO_REUSEPORT), 0);
    EXPECT_NE(::fcntl(socket, F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_NE(::fcntl(socket, F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(TcpListener, TakesASocketThatWasHandedOver) {
  const Fd kept = bind_socket({"127.0.0.1", 0}, kLocal);  // by a launcher, over the lives of a server
  const Address address = local_address(kept.get());
  SteadyClock clock;
  Loop loop(clock);
  Recorder early;
  const auto knocking = connect_tcp(loop, address, hello_of_worker(0), early, SharedMemory::kNever, kLocal);
  for (int life = 0; life < 3; ++life) {
    Door door;
    const auto listener =
        listen_tcp(loop, Fd(::fcntl(kept.get(), F_DUPFD_CLOEXEC, 0)), door, SharedMemory::kNever, kLocal);
    EXPECT_EQ(listener->address(), address.text());
    Recorder recorder;
    const auto client = connect_tcp(loop, address, hello_of_worker(1), recorder, SharedMemory::kNever, kLocal);
    ASSERT_TRUE(loop.run_until([&] { return recorder.opened == 1 && early.opened == 1; }, clock.now() + seconds(120)));
  }
}

TEST(TcpListener, HandsConnectionsToTheLoopThatTheAcceptorNames) {
  for (const auto shared_memory : {SharedMemory::kNever, SharedMemory::kRequire}) {
    Place place(shared_memory);
    Loop other(place.clock);
    place.door.answer.loop = &other;
    std::atomic<bool> stop = false;
    std::thread::id thread_of_messages;
    place.door.receiver.when_message = [&](Connection& connection, const Message& message) {
      thread_of_messages = std::this_thread::get_id();
      connection.send(message.type, message.body);
    };
    std::thread runner([&] { other.run_until([&] { return stop.load(); }, place.clock.now() + seconds(120)); });
    const auto runner_id = runner.get_id();
    Recorder recorder;
    const auto client = place.connect(recorder, shared_memory);
    EXPECT_TRUE(place.until([&] { return recorder.opened == 1; })) << recorder.why;
    client->send(kNote, pattern(100, 1));
    EXPECT_TRUE(place.until([&] { return recorder.messages == 1; }));
    stop = true;
    other.wake();
    runner.join();
    EXPECT_EQ(thread_of_messages, runner_id);
    place.door.connections.clear();
  }
}

TEST(TcpConnector, WaitsForAListenerThatComesLater) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    Place place;
    Fd socket = bind_socket({host, 0}, kLocal);
    const Address address = local_address(socket.get());
    socket.reset();
    Recorder recorder;
    const auto client = connect_tcp(place.loop, address, hello_of_worker(1), recorder, SharedMemory::kNever, kLocal);
    int turns = 0;
    ASSERT_TRUE(place.until([&] { return ++turns == 6; }));  // several attempts have failed
    EXPECT_EQ(recorder.opened + recorder.closed, 0);
    const auto late = listen_tcp(place.loop, bind_socket(address, kLocal), place.door, SharedMemory::kNever, kLocal);
    EXPECT_TRUE(place.until([&] { return recorder.opened == 1; })) << recorder.why;
  }
}

TEST(TcpConnector, KnocksAgainWhenTheListenerEndsDuringTheHandshake) {
  Place place;
  place.listener.reset();
  const Fd kept = bind_socket(place.address, kLocal);
  Recorder recorder;
  const auto client = place.connect(recorder);
  ::fcntl(kept.get(), F_SETFL, ::fcntl(kept.get(), F_GETFL) | O_NONBLOCK);
  for (int knocks = 0; knocks < 3; ++knocks) {
    Fd taken;
    ASSERT_TRUE(place.until([&] {
      taken = Fd(::accept(kept.get(), nullptr, nullptr));
      return bool(taken);
    }));
  }
  place.listener = listen_tcp(place.loop, Fd(::dup(kept.get())), place.door, SharedMemory::kNever, kLocal);
  EXPECT_TRUE(place.until([&] { return recorder.opened == 1; })) << recorder.why;
}

TEST(TcpConnector, ASilentListenerIsATimeoutThatSaysWhere) {
  Place place;
  place.listener.reset();
  const Fd mute = bind_socket(place.address, kLocal);
  Recorder recorder;
  ConnectOptions options;
  options.deadline = std::chrono::milliseconds(50);
  options.peer = "server 3";
  const auto client = place.connect(recorder, SharedMemory::kNever, options);
  ASSERT_TRUE(place.until([&] { return recorder.closed == 1; }));
  EXPECT_THAT(recorder.why, AllOf(StartsWith("TimeoutError: "), HasSubstr("server 3 at " + place.address.text()),
                                  HasSubstr("worker 1"), HasSubstr("the handshake was not answered")));
}

TEST(TcpConnector, AListenerOfAnotherKindIsNamed) {
  Place place;
  place.listener.reset();
  const Fd other = bind_socket(place.address, kLocal);
  Recorder recorder;
  const auto client = place.connect(recorder);
  Fd taken;
  ASSERT_TRUE(place.until([&] {
    taken = Fd(::accept(other.get(), nullptr, nullptr));
    return bool(taken);
  }));
  const RawPeer web_server(std::move(taken));
  ASSERT_TRUE(web_server.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
  ASSERT_TRUE(place.until([&] { return recorder.closed == 1; }));
  EXPECT_THAT(recorder.why, AllOf(StartsWith("ProtocolError: "), HasSubstr(place.address.text()), HasSubstr("'HTTP'")));
}

TEST(SharedMemoryChoice, IsMadeByBothSides) {
  using enum SharedMemory;
  const std::tuple<SharedMemory, SharedMemory, std::string> cases[] = {
      {kAuto, kAuto, "shm"},
      {kRequire, kAuto, "shm"},
      {kAuto, kRequire, "shm"},
      {kNever, kAuto, "tcp"},
      {kAuto, kNever, "tcp"},
      {kNever, kNever, "tcp"},
      {kNever, kRequire, "shared memory is required, but the listener"},
      {kRequire, kNever, "shared memory is required here"},
  };
  for (const auto& [listening, connecting, expected] : cases) {
    const CapturedLog log;
    Place place(listening);
    Recorder recorder;
    const auto client = place.connect(recorder, connecting);
    ASSERT_TRUE(place.until([&] { return recorder.opened + recorder.closed == 1; }));
    EXPECT_THAT(recorder.opened == 1 ? std::string(name(client->medium())) : recorder.why, HasSubstr(expected));
    EXPECT_EQ(segment_of(*client) != nullptr, recorder.opened == 1 && expected == "shm");
    EXPECT_EQ(client->outgoing().empty(), recorder.opened == 0 || expected == "tcp");
  }
}

// What a listener on another machine looks like: its local socket is not to be found here.
TEST(SharedMemoryChoice, AnOfferThatCannotBeReachedIsDeclined) {
  for (const auto wish : {SharedMemory::kAuto, SharedMemory::kRequire}) {
    Place place;
    place.listener.reset();
    const Fd elsewhere = bind_socket(place.address, kLocal);
    Recorder recorder;
    const auto client = place.connect(recorder, wish);
    Fd taken;
    ASSERT_TRUE(place.until([&] {
      taken = Fd(::accept(elsewhere.get(), nullptr, nullptr));
      return bool(taken);
    }));
    const RawPeer server(std::move(taken));
    ASSERT_TRUE(server.send(FrameType::kOffer, encode(Offer{{1, 2}, "downpour-not-here"})));
    if (wish == SharedMemory::kRequire) {
      ASSERT_TRUE(place.until([&] { return recorder.closed == 1; }));
      EXPECT_THAT(recorder.why, AllOf(StartsWith("CommError: "), HasSubstr("cannot be reached from here")));
      continue;
    }
    std::vector<std::byte> heard;
    ASSERT_TRUE(place.until([&] {
      const auto more = server.receive();
      heard.insert(heard.end(), more.begin(), more.end());
      return heard.size() >= kFrameHeaderBytes + encode(client->hello()).size() + kFrameHeaderBytes;
    }));
    const auto last = decode_handshake_frame(Bytes(heard).last(kFrameHeaderBytes));
    EXPECT_TRUE(last.is(FrameType::kDecline));
    ASSERT_TRUE(server.send(FrameType::kWelcome, encode(Welcome{})));
    ASSERT_TRUE(place.until([&] { return recorder.opened == 1; }));
    EXPECT_EQ(client->medium(), Medium::kTcp);
  }
}

// A real process of its own, killed: what it had sent arrives, and then its loss.
TEST(TcpProcesses, AKilledPeerIsLostOverEitherMedium) {
  for (const auto shared_memory : {SharedMemory::kNever, SharedMemory::kRequire}) {
    Place place(shared_memory);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      SteadyClock clock;
      Loop loop(clock);  // a loop does not survive a fork
      Recorder recorder;
      recorder.when_opened = [](Connection& connection) { connection.send(kNote, pattern(1000, 1)); };
      const auto client =
          connect_tcp(loop, place.address, hello_of_worker(1), recorder, shared_memory, kLocal, ConnectOptions{});
      for (;;) {
        loop.run_once(clock.now() + seconds(1));
      }
    }
    ASSERT_TRUE(place.until([&] { return place.door.receiver.messages == 1; }));
    ::kill(child, SIGKILL);
    ASSERT_TRUE(place.until([&] { return place.door.receiver.closed == 1; }));
    ::waitpid(child, nullptr, 0);
    EXPECT_THAT(place.door.receiver.why, StartsWith("PeerLostError: worker 1 ("));
  }
}

// Descriptors are a limit like any other: accepting pauses, and goes on when there are some again.
TEST(TcpListener, RunsOutOfDescriptorsAndRecovers) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan, which is on with it, opens a pipe to check an object and calls it broken when it cannot";
#endif
  const CapturedLog log;
  Place place;
  Recorder recorder;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  RawPeer waiting(place.address);
  const rlimit tight{static_cast<rlim_t>(waiting.fd()) + 1, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<Fd> fillers;  // of the holes below
  for (Fd filler(::dup(0)); filler; filler = Fd(::dup(0))) {
    fillers.push_back(std::move(filler));
  }
  ASSERT_TRUE(waiting.send(FrameType::kHello, encode(hello_of_worker(1))));
  EXPECT_TRUE(place.until([&] { return log.lines() > 0; }));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("pauses"), HasSubstr("Too many open files")));
  fillers.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(place.until([&] { return place.door.connections.size() == 1; }));
}

// Admitted, but there is no descriptor left for shared memory: the refusal says that a later attempt may do better.
TEST(TcpListening, WithoutDescriptorsForSharedMemoryALaterAttemptMayDoBetter) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object's memory";
#endif
  const CapturedLog log;
  Place place(SharedMemory::kAuto);
  Recorder recorder, later;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  place.door.when_asked = [&limit] {
    const Fd lowest_free(::dup(0));
    const rlimit tight{static_cast<rlim_t>(lowest_free.get()), limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  };
  const auto client = place.connect(recorder, SharedMemory::kAuto);
  EXPECT_TRUE(place.until([&] { return recorder.opened + recorder.closed > 0; }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(recorder.why, AllOf(StartsWith("ProtocolError: "), HasSubstr(kLaterPrefix), HasSubstr("Too many open")));
  place.door.when_asked = nullptr;
  const auto again = place.connect(later, SharedMemory::kAuto);
  EXPECT_TRUE(place.until([&] { return later.opened == 1; })) << later.why;
}

// A worker that lost its server keeps the old segment for a replay; the new connection must not see a byte of it.
TEST(TcpMedium, EveryReconnectionMapsAFreshSegment) {
  Place place(SharedMemory::kRequire);
  Recorder first, second;
  auto client = place.connect(first, SharedMemory::kRequire);
  ASSERT_TRUE(place.until([&] { return first.opened == 1 && place.door.connections.size() == 1; })) << first.why;
  const std::shared_ptr<Segment> old = segment_of(*client);
  client->outgoing()[0] = std::byte{42};
  EXPECT_EQ(place.door.connections[0]->incoming()[0], std::byte{42});
  client.reset();
  ASSERT_TRUE(place.until([&] { return place.door.receiver.closed == 1; }));

  client = place.connect(second, SharedMemory::kRequire);
  ASSERT_TRUE(place.until([&] { return second.opened == 1 && place.door.connections.size() == 2; })) << second.why;
  EXPECT_NE(segment_of(*client), old);
  EXPECT_EQ(client->outgoing()[0], std::byte{0});
  client->outgoing()[0] = std::byte{7};
  EXPECT_EQ(place.door.connections[1]->incoming()[0], std::byte{7});
  EXPECT_EQ(old->window_to_acceptor()[0], std::byte{42}) << "kept for whoever still needs it";
  EXPECT_EQ(place.door.connections[0]->incoming()[0], std::byte{42});
}

// Pages that nobody writes to any more need not be copied.
TEST(TcpLastingBulk, ArrivesWholeWhateverTheSocketTakesAtOnce) {
  constexpr std::size_t kSizes[] = {64, 64 * 1024, 1024 * 1024, 65'537};
  for (const bool lasting : {false, true}) {
    Joined joined(Kind::kTcpIpv4, {}, {.lasting_bulk = lasting});
    std::vector<std::vector<std::byte>> bulks;
    std::size_t received = 0;
    joined.door.receiver.when_message = [&](Connection& connection, const Message& message) {
      EXPECT_TRUE(std::ranges::equal(message.bulk, bulks.at(received))) << received;
      ++received;
      connection.grant(1);
    };
    for (std::size_t i = 0; i < 20; ++i) {
      bulks.push_back(pattern(kSizes[i % 4], i));
    }
    for (std::size_t i = 0; i < bulks.size(); ++i) {
      ASSERT_TRUE(joined.harness->until([&] { return joined.client->credits() > 0; }));
      joined.client->put(kNote, pattern(10, i), bulks[i], 0, Credit::kTake);
    }
    EXPECT_TRUE(joined.harness->until([&] { return received == bulks.size(); })) << received;
  }
}

// The socket has it, and the peer has not read it yet.
void wait_until_sent(Joined& joined) {
  for (int turns = 0; !joined.client->idle() && turns < 100'000; ++turns) {
    joined.harness->turn_client();
  }
  ASSERT_TRUE(joined.client->idle());
}

TEST(TcpLastingBulk, IsReadWhereItLiesAndOthersAreCopied) {
  for (const bool lasting : {false, true}) {
    Joined joined(Kind::kTcpIpv4, {}, {.lasting_bulk = lasting});
    const Window memory(64 * 1024);
    memory.bytes()[7] = std::byte{1};
    joined.client->put(kNote, {}, memory.bytes(), 0, Credit::kTake);
    wait_until_sent(joined);
    memory.bytes()[7] = std::byte{2};
    ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 1; }));
    EXPECT_EQ(joined.server().incoming()[7], std::byte(lasting && pages_can_be_sent() ? 2 : 1));
  }
}

TEST(TcpLastingBulk, MayBeUnmappedOnceTheSocketHasIt) {
  Joined joined(Kind::kTcpIpv4, {}, {.lasting_bulk = true});
  const std::vector<std::byte> expected = pattern(64 * 1024, 1);
  auto memory = std::make_unique<Window>(expected.size());
  std::ranges::copy(expected, memory->bytes().begin());
  joined.client->put(kNote, {}, memory->bytes(), 0, Credit::kTake);
  wait_until_sent(joined);
  memory.reset();
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 1; }));
  EXPECT_TRUE(std::ranges::equal(joined.server().incoming().first(expected.size()), expected));
}

TEST(TcpLastingBulk, IsCopiedWhereThereIsNoPipe) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at an object's memory";
#endif
  Joined joined(Kind::kTcpIpv4, {}, {.lasting_bulk = true});
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::vector<std::byte> bulk = pattern(1024 * 1024, 1);
  joined.client->put(kNote, {}, bulk, 0, Credit::kTake);
  joined.client->put(kNote, {}, bulk, 0, Credit::kTake);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_TRUE(joined.harness->until([&] { return joined.door.receiver.messages == 2; }));
  EXPECT_TRUE(std::ranges::equal(joined.server().incoming().first(bulk.size()), bulk));
}

TEST(TcpLastingBulk, IsNotKept) {
  Joined joined(Kind::kTcpIpv4, {}, {.lasting_bulk = true});
  EXPECT_THROW(joined.client->keep_bulk(), Error);
}

}  // namespace
}  // namespace downpour::transport
