// Strangers, scanners and broken peers at a TCP listener: each ends alone, and the listener lives on.
#include <netinet/in.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "csrc/base/random.h"
#include "csrc/transport/local_socket.h"
#include "tests/transport/connection_suite.h"
#include "tests/transport/raw_peer.h"

namespace downpour::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kLocal = Exposure::kLoopbackOnly;

// A listener under a clock that the test advances.
struct Port {
  explicit Port(SharedMemory shared_memory = SharedMemory::kNever, const ListenOptions& options = {}) {
    Fd socket = bind_socket({"127.0.0.1", 0}, kLocal);
    address = local_address(socket.get());
    listener = listen_tcp(loop, std::move(socket), door, shared_memory, kLocal, options);
  }
  bool until(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + seconds(120);
    while (!done()) {
      if (!loop.run_once(clock.now()) && std::chrono::steady_clock::now() > limit) {
        return false;
      }
    }
    return true;
  }
  void settle() {
    for (int quiet = 0; quiet < 20;) {
      quiet = loop.run_once(clock.now()) ? 0 : quiet + 1;
    }
  }
  void expect_alive() {
    Recorder recorder;
    const auto client = connect_tcp(loop, address, hello_of_worker(7), recorder, SharedMemory::kNever, kLocal);
    EXPECT_TRUE(until([&] { return recorder.opened == 1; })) << recorder.why;
  }

  CapturedLog log;
  ManualClock clock;
  Loop loop{clock};
  Door door;
  Address address;
  std::unique_ptr<Listener> listener;
};

std::vector<std::byte> hello_frame() { return handshake_frame(FrameType::kHello, encode(hello_of_worker(1))); }

// A raw peer that was let in.
struct Inside {
  Inside() : peer(port.address) {
    EXPECT_TRUE(peer.send(hello_frame()));
    EXPECT_TRUE(port.until([this] { return port.door.connections.size() == 1; }));
    EXPECT_TRUE(decode_handshake_frame(peer.receive()).is(FrameType::kWelcome));
  }
  Port port;
  RawPeer peer;
};

TEST(TcpStranger, ThatSaysSomethingElseIsTurnedAwayWithALine) {
  Port port;
  const RawPeer browser(port.address);
  ASSERT_TRUE(browser.send("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"));
  ASSERT_TRUE(port.until([&] { return browser.is_at_end(); }));
  EXPECT_THAT(port.log.text(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("'GET '")));
  port.expect_alive();
}

TEST(TcpStranger, ThatComesAndGoesIsNothing) {
  Port port;
  for (int i = 0; i < 200; ++i) {
    RawPeer scanner(port.address);
    ASSERT_TRUE(scanner.is_connected());
    scanner.die();
    port.settle();
  }
  EXPECT_LE(port.log.lines(), 10) << port.log.text();
  port.expect_alive();
}

TEST(TcpStranger, SendsRandomBytes) {
  Port port;
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    RawPeer stranger(port.address);
    std::vector<std::byte> bytes = hello_frame();
    switch (round % 3) {
      case 0:  // noise
        bytes.resize(1 + random.below(300));
        for (auto& byte : bytes) {
          byte = static_cast<std::byte>(random.next());
        }
        break;
      case 1: bytes.resize(random.below(bytes.size())); break;                                      // cut short
      default: bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1u << random.below(8));  // one bit
    }
    stranger.send(bytes);
    port.settle();
    stranger.die();
    port.settle();
  }
  port.expect_alive();
  EXPECT_LE(port.log.lines(), 10);
}

TEST(TcpStranger, MayNotAnnounceMoreThanAHandshake) {
  for (const std::uint64_t bulk : {0, 1}) {
    Port port;
    const RawPeer greedy(port.address);
    FrameHeader header{.type = static_cast<std::uint16_t>(FrameType::kHello)};
    header.body_bytes = bulk != 0 ? 0 : kHandshakeLimits.body_bytes + 1;
    header.bulk_bytes = bulk;
    std::vector<std::byte> bytes(kFrameHeaderBytes);
    encode_header(header, std::span(bytes).first<kFrameHeaderBytes>());
    ASSERT_TRUE(greedy.send(bytes));
    ASSERT_TRUE(port.until([&] { return greedy.is_at_end(); }));
    EXPECT_TRUE(port.door.hellos.empty());
    port.expect_alive();
  }
}

TEST(TcpStranger, IsGivenUpAfterTheHandshakeDeadline) {
  Port port;
  const RawPeer silent(port.address);
  const RawPeer slow(port.address);
  ASSERT_TRUE(slow.send(Bytes(hello_frame()).first(50)));
  port.settle();
  EXPECT_FALSE(silent.is_at_end() || slow.is_at_end());
  port.clock.advance(seconds(3));
  ASSERT_TRUE(port.until([&] { return silent.is_at_end() && slow.is_at_end(); }));
  EXPECT_THAT(port.log.text(), HasSubstr("did not finish its handshake"));
  port.expect_alive();
}

TEST(TcpStranger, OfAnotherVersionHearsSoInItsOwnFrame) {
  Port port;
  const RawPeer stranger(port.address);
  Hello hello = hello_of_worker(1);
  hello.protocol = 2;
  std::vector<std::byte> bytes = handshake_frame(FrameType::kHello, encode(hello));
  ASSERT_TRUE(stranger.send(bytes));
  std::vector<std::byte> answer;
  ASSERT_TRUE(port.until([&] {
    answer = stranger.receive();
    return !answer.empty();
  }));
  const HandshakeFrame frame = decode_handshake_frame(answer);
  ASSERT_TRUE(frame.is(FrameType::kRefused));
  EXPECT_THAT(decode_refusal(frame.body).reason, AllOf(HasSubstr("version 1"), HasSubstr("version 2")));
  EXPECT_TRUE(port.until([&] { return stranger.is_at_end(); }));
}

// What the fuzzers start from, at a real listener: before the handshake and after it.
TEST(TcpStranger, TheFuzzersInputsLeaveTheListenerAlive) {
  const auto folder = std::filesystem::path(DOWNPOUR_TEST_FOLDER) / "../fuzz/corpus";
  int inputs = 0;
  for (const char* target : {"frame", "handshake"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / target)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      for (const bool after_hello : {false, true}) {
        Inside inside;
        const RawPeer stranger(inside.port.address);
        (after_hello ? inside.peer : stranger).send(std::string_view(bytes).substr(1));
        inside.port.settle();
        inside.port.expect_alive();
        ++inputs;
      }
    }
  }
  EXPECT_GE(inputs, 20);
}

// More newcomers than may be pending: they wait in the kernel's queue, and come in as the others leave.
TEST(TcpStranger, CannotFillTheDoorForLong) {
  ListenOptions options;
  options.pending_handshakes = 4;
  Port port(SharedMemory::kAuto, options);
  std::vector<std::unique_ptr<RawPeer>> idle;
  for (int i = 0; i < 10; ++i) {
    idle.push_back(std::make_unique<RawPeer>(port.address));
  }
  Recorder recorder;
  ConnectOptions patient;
  patient.deadline = seconds(100);
  const auto client =
      connect_tcp(port.loop, port.address, hello_of_worker(1), recorder, SharedMemory::kAuto, kLocal, patient);
  port.settle();
  EXPECT_EQ(recorder.opened, 0);
  for (int waves = 0; waves < 3; ++waves) {
    port.clock.advance(seconds(3));
    port.settle();
  }
  EXPECT_TRUE(port.until([&] { return recorder.opened == 1; })) << recorder.why;
}

// Each waits for the local socket; none of them may be what keeps it shut.
TEST(TcpNewcomers, MoreThanMayBePendingStillAllGetSharedMemory) {
  ListenOptions options;
  options.pending_handshakes = 4;
  Port port(SharedMemory::kAuto, options);
  std::vector<Recorder> recorders(40);
  std::vector<std::unique_ptr<Connection>> clients;
  for (auto& recorder : recorders) {
    clients.push_back(connect_tcp(port.loop, port.address, hello_of_worker(1), recorder, SharedMemory::kAuto, kLocal));
  }
  ASSERT_TRUE(
      port.until([&] { return std::ranges::all_of(recorders, [](const auto& one) { return one.opened == 1; }); }));
  for (const auto& client : clients) {
    EXPECT_EQ(client->medium(), Medium::kSharedMemory);
  }
}

TEST(TcpNewcomers, AClaimToNoOfferIsTurnedAway) {
  Port port(SharedMemory::kAuto);
  const RawPeer victim(port.address);
  Hello hello = hello_of_worker(1);
  hello.wants_shared_memory = 1;
  ASSERT_TRUE(victim.send(FrameType::kHello, encode(hello)));
  std::vector<std::byte> answer;
  ASSERT_TRUE(port.until([&] {
    answer = victim.receive();
    return !answer.empty();
  }));
  const Offer offer = decode_offer(decode_handshake_frame(answer).body);
  for (const auto& bytes :
       {handshake_frame(FrameType::kClaim, encode(Claim{{offer.nonce[0], offer.nonce[1] + 1}})),
        handshake_frame(FrameType::kHello, encode(hello)), std::vector<std::byte>(10), std::vector<std::byte>(5000)}) {
    const RawPeer thief(connect_local(offer.socket_name));
    ASSERT_TRUE(thief.send(bytes));
    ASSERT_TRUE(port.until([&] { return thief.is_at_end(); }));
  }
  EXPECT_TRUE(port.door.hellos.empty());
  ASSERT_TRUE(victim.send(FrameType::kDecline, {}));
  EXPECT_TRUE(port.until([&] { return port.door.connections.size() == 1; })) << "the offer was not spoilt";
  EXPECT_EQ(port.door.media[0], Medium::kTcp);
}

// Wherever a message is cut, the connection is lost, once, and the message was never delivered.
TEST(TcpPeer, ThatDiesWithinAMessageIsLostWhereverItWas) {
  const auto frame = frame_bytes({.type = kNote, .bulk_offset = 100}, pattern(30, 1), pattern(50, 2));
  for (std::size_t cut = 0; cut <= frame.size(); ++cut) {
    Inside inside;
    ASSERT_TRUE(cut == 0 || inside.peer.send(Bytes(frame).first(cut)));
    if (cut % 2 == 0) {
      inside.port.settle();
    }
    inside.peer.die();
    ASSERT_TRUE(inside.port.until([&] { return inside.port.door.receiver.closed == 1; }));
    EXPECT_THAT(inside.port.door.receiver.why, StartsWith("PeerLostError: worker 1 (tcp) was lost"));
    EXPECT_EQ(inside.port.door.receiver.why.find("in the middle of a message") != std::string::npos,
              cut > 0 && cut < frame.size())
        << cut;
    EXPECT_EQ(inside.port.door.receiver.messages, cut == frame.size() ? 1u : 0u);
    inside.port.settle();
    EXPECT_EQ(inside.port.door.receiver.closed, 1);
  }
}

TEST(TcpPeer, ThatResetsIsLost) {
  Inside inside;
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(inside.peer.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  inside.peer.die();
  ASSERT_TRUE(inside.port.until([&] { return inside.port.door.receiver.closed == 1; }));
  EXPECT_THAT(inside.port.door.receiver.why, HasSubstr("reset"));
}

TEST(TcpPeer, IsAlsoFoundLostBySending) {
  Inside inside;
  inside.peer.die();
  Connection& connection = *inside.port.door.connections[0];
  for (int i = 0; i < 10; ++i) {
    connection.send(kNote, pattern(1000, 1));  // reports nothing
    EXPECT_EQ(inside.port.door.receiver.closed, 0);
  }
  ASSERT_TRUE(inside.port.until([&] { return inside.port.door.receiver.closed == 1; }));
  EXPECT_THAT(inside.port.door.receiver.why, StartsWith("PeerLostError: "));
}

TEST(TcpPeer, ThatBreaksTheRulesEndsItsOwnConnectionOnly) {
  const std::pair<std::vector<std::byte>, const char*> cases[] = {
      {std::vector<std::byte>(100), "no frame"},
      {frame_bytes({.type = kNote, .bulk_offset = (1 << 20) - 3}, {}, pattern(4, 1)), "outside the window"},
      {frame_bytes({.type = kNote, .bulk_offset = ~std::uint64_t{0} - 1}, {}, pattern(4, 1)), "outside the window"},
      {frame_bytes({.type = kNote}, pattern(65'537, 1), {}), "exceeds the limit"},
      {frame_bytes({.type = 20}, {}, {}), "unknown type 20"},
      {hello_frame(), "after the handshake"},
      {frame_bytes({.type = static_cast<std::uint16_t>(FrameType::kCredit)}, pattern(4, 1), {}),
       "credits that nobody took"},
      {frame_bytes({.type = static_cast<std::uint16_t>(FrameType::kCredit)}, pattern(3, 1), {}), "truncated"},
  };
  for (const auto& [bytes, expected] : cases) {
    Inside inside;
    inside.peer.send(bytes);
    ASSERT_TRUE(inside.port.until([&] { return inside.port.door.receiver.closed == 1; })) << expected;
    EXPECT_THAT(inside.port.door.receiver.why,
                AllOf(StartsWith("ProtocolError: worker 1 (tcp): "), HasSubstr(expected)));
    EXPECT_THAT(inside.port.log.text(), HasSubstr(expected));
    EXPECT_TRUE(inside.port.until([&] { return inside.peer.is_at_end(); }));
    inside.port.expect_alive();
  }
}

TEST(TcpPeer, MayNotTakeMoreCreditsThanItHas) {
  Inside inside;
  const auto frame = frame_bytes({.type = kNote, .takes_credit = 1}, {}, pattern(8, 1));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(inside.peer.send(frame));
  }
  ASSERT_TRUE(inside.port.until([&] { return inside.port.door.receiver.closed == 1; }));
  EXPECT_EQ(inside.port.door.receiver.messages, 4u);
  EXPECT_THAT(inside.port.door.receiver.why, HasSubstr("none is left of 4"));
}

// A real process, killed while a large message of its is under way.
TEST(TcpPeer, ThatIsKilledWithinBulkBytesIsLost) {
  Port port;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RawPeer peer(port.address);
    peer.send(hello_frame());
    const auto frame = frame_bytes({.type = kNote}, {}, pattern(1 << 20, 1));
    peer.send(Bytes(frame).first(frame.size() - 1));
    for (;;) {
      ::pause();
    }
  }
  ASSERT_TRUE(port.until([&] { return port.door.connections.size() == 1; }));
  const MutableBytes window = port.door.connections[0]->incoming();
  const auto expected = pattern(1 << 20, 1);
  ASSERT_TRUE(port.until([&] { return window[window.size() - 2] == expected[window.size() - 2]; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(port.until([&] { return port.door.receiver.closed == 1; }));
  EXPECT_THAT(port.door.receiver.why, AllOf(StartsWith("PeerLostError: "), HasSubstr("in the middle of a message")));
  EXPECT_EQ(port.door.receiver.messages, 0u);
  port.expect_alive();
}

}  // namespace
}  // namespace downpour::transport
