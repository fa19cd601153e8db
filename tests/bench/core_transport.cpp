// Connections between two processes beside a bare socket on loopback, each in turn in the same run; one JSON object a line.
//
// Throughput: 4 MB messages one way, up to four under way; the bare socket writes 1 MiB at a time and reads into 4 MB of memory.
// Over shared memory put() copies the message once, into the peer's window. Latency: 64-byte ping-pong, nobody spins.
// `ratio` is the median over pairs of neighbouring rounds, since the machine's drift hits both of a pair.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/transport/tcp.h"
#include "tests/bench/bench.h"

namespace {

using namespace downpour;
using namespace downpour::transport;

constexpr std::size_t kMessageBytes = 4 << 20;
constexpr std::size_t kWriteBytes = 1 << 20;
constexpr int kSlots = 4;
constexpr int kMessages = 48;  // a round: 200 MB
constexpr int kPingPongs = 2000;
constexpr int kRounds = 21;
constexpr std::uint16_t kPing = 100;
constexpr std::uint16_t kBulk = 101;
constexpr const char* kStreamTcp = "transport.stream_4mb.tcp";
constexpr const char* kStreamShm = "transport.stream_4mb.shm";
constexpr const char* kPingTcp = "transport.pingpong_64b.tcp.p50";
constexpr const char* kPingShm = "transport.pingpong_64b.shm.p50";
constexpr const char* kPeer = "bare TCP socket on loopback";

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(bool condition, const char* what) {
  if (!condition) {
    std::perror(what);
    std::exit(1);
  }
}

// The other process; ended by destruction.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ == 0) {
      body();
      ::_exit(0);
    }
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

// What both kinds can do, seen from this process.
class Way {
 public:
  virtual ~Way() = default;
  virtual void stream(Bytes message, int count) = 0;  // until the other process has them all
  virtual void round_trip(Bytes ping) = 0;
};

void write_all(int socket, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), std::min(bytes.size(), kWriteBytes), MSG_NOSIGNAL);
    require(sent > 0, "send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

bool read_all(int socket, MutableBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      return false;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// The bare socket. Each exchange starts with its size; the other process answers with one byte, or echoes what is small.
class BareSocket final : public Way {
 public:
  BareSocket() {
    listening_ = bind_socket({"127.0.0.1", 0}, Exposure::kLoopbackOnly);
    ::fcntl(listening_.get(), F_SETFL, 0);
    child_.emplace([this] { answer(); });
    const Address address = local_address(listening_.get());
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(address.port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = Fd(::socket(AF_INET, SOCK_STREAM, 0));
    require(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0, "connect");
    no_delay(socket_.get());
  }

  void stream(Bytes message, int count) override {
    announce(message.size(), static_cast<std::uint64_t>(count));
    for (int i = 0; i < count; ++i) {
      write_all(socket_.get(), message);
    }
    std::byte done;
    read_all(socket_.get(), MutableBytes(&done, 1));
  }
  void round_trip(Bytes ping) override {
    std::byte answer[64];
    write_all(socket_.get(), ping);
    read_all(socket_.get(), answer);
  }
  void begin_round_trips() { announce(64, 0); }

 private:
  struct Order {
    std::uint64_t bytes;
    std::uint64_t count;  // 0: ping-pongs
  };
  static void no_delay(int socket) {
    const int one = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
  void announce(std::uint64_t bytes, std::uint64_t count) {
    const Order order{bytes, count};
    write_all(socket_.get(), std::as_bytes(std::span(&order, 1)));
  }
  void answer() {
    const Fd socket(::accept(listening_.get(), nullptr, nullptr));
    no_delay(socket.get());
    std::vector<std::byte> memory(kMessageBytes);
    Order order{};
    while (read_all(socket.get(), std::as_writable_bytes(std::span(&order, 1)))) {
      for (std::uint64_t i = 0; i < std::max<std::uint64_t>(order.count, 1) * (order.count == 0 ? kPingPongs : 1);
           ++i) {
        const MutableBytes part = MutableBytes(memory).first(order.bytes);
        read_all(socket.get(), part);
        if (order.count == 0) {
          write_all(socket.get(), part);
        }
      }
      if (order.count != 0) {
        write_all(socket.get(), Bytes(memory).first(1));
      }
    }
  }

  Fd listening_;
  Fd socket_;
  std::optional<Child> child_;
};

// The other process of a connection: gives credits back and echoes.
struct Server final : Acceptor, Receiver {
  Admission admit(const Hello&, Medium) override {
    Admission admission;
    admission.accepted = true;
    admission.welcome.to_acceptor_window_bytes = kSlots * kMessageBytes;
    admission.welcome.credits = kSlots;
    admission.receiver = this;
    return admission;
  }
  void on_connection(std::unique_ptr<Connection> newcomer) override { connection = std::move(newcomer); }
  void on_message(Connection& from, const Message& message) override {
    message.takes_credit ? from.grant(1) : from.send(message.type, message.body);
  }
  void on_closed(Connection&, std::exception_ptr) override { ::_exit(0); }

  std::unique_ptr<Connection> connection;
};

class Ours final : public Way, Receiver {
 public:
  explicit Ours(SharedMemory shared_memory) {
    Fd listening = bind_socket({"127.0.0.1", 0}, Exposure::kLoopbackOnly);
    const Address address = local_address(listening.get());
    // Forks first: a loop does not survive a fork.
    child_.emplace([&] {
      SteadyClock clock;
      Loop loop(clock);
      Server server;
      const auto listener = listen_tcp(loop, std::move(listening), server, shared_memory, Exposure::kLoopbackOnly);
      for (;;) {
        loop.run_once(loop.now() + std::chrono::seconds(60));
      }
    });
    loop_ = std::make_unique<Loop>(clock_);
    connection_ = connect_tcp(*loop_, address, Hello{}, *this, shared_memory, Exposure::kLoopbackOnly);
    run_until([this] { return connection_->outgoing_window_bytes() > 0; });
  }

  void stream(Bytes message, int count) override {
    for (int i = 0; i < count; ++i) {
      run_until([this] { return connection_->credits() > 0; });
      connection_->put(kBulk, {}, message, static_cast<std::size_t>(slot_++ % kSlots) * kMessageBytes, Credit::kTake);
    }
    run_until([this] { return connection_->credits() == kSlots; });
  }
  void round_trip(Bytes ping) override {
    const std::uint64_t before = answers_;
    connection_->send(kPing, ping);
    run_until([this, before] { return answers_ > before; });
  }

 private:
  void on_message(Connection&, const Message&) override { ++answers_; }
  void on_closed(Connection&, std::exception_ptr) override { require(false, "the connection was lost"); }
  void run_until(const std::function<bool()>& done) {
    require(loop_->run_until(done, loop_->now() + std::chrono::seconds(60)), "the other process hangs");
  }

  SteadyClock clock_;
  std::optional<Child> child_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Connection> connection_;
  std::uint64_t answers_ = 0;
  int slot_ = 0;
};

double stream_rate(Way& way, Bytes message) {
  const double start = now_seconds();
  way.stream(message, kMessages);
  return 1e-9 * static_cast<double>(kMessages) * static_cast<double>(message.size()) / (now_seconds() - start);
}

double round_trip_us(Way& way) {
  const std::byte ping[64] = {};
  bench::Rounds times;
  for (int i = 0; i < kPingPongs; ++i) {
    const double start = now_seconds();
    way.round_trip(ping);
    times.add(1e6 * (now_seconds() - start));
  }
  return times.median();
}

}  // namespace

int main(int argc, char** argv) {
  bench::take_filter(argc, argv);
  if (!bench::is_any_wanted({kStreamTcp, kStreamShm, kPingTcp, kPingShm})) {
    return 0;
  }
  BareSocket bare;
  Ours tcp(SharedMemory::kNever);
  Ours shm(SharedMemory::kRequire);
  const std::vector<std::byte> message(kMessageBytes, std::byte{0x5a});
  bench::Rounds rates[3];
  bench::Rounds times[3];
  for (int round = -1; round < kRounds; ++round) {  // the first one warms up
    for (int which = 0; which < 3; ++which) {
      Way* const ways[] = {&bare, &tcp, &shm};
      const double rate = stream_rate(*ways[which], message);
      if (which == 0) {
        bare.begin_round_trips();
      }
      const double time = round_trip_us(*ways[which]);
      if (round >= 0) {
        rates[which].add(rate);
        times[which].add(time);
      }
    }
  }
  using enum bench::Better;
  bench::Line(kStreamTcp, rates[1], kMore, "GB/s").beside(kPeer, rates[0]).print();
  bench::Line(kStreamShm, rates[2], kMore, "GB/s").beside(kPeer, rates[0]).print();
  bench::Line(kPingTcp, times[1], kLess, "us").beside(kPeer, times[0]).print();
  bench::Line(kPingShm, times[2], kLess, "us").beside(kPeer, times[0]).print();
}
