// Shared memory beside the machine's own limits, each pair measured in turn in the same run; one JSON object a line.
//
// Latency: 64-byte ping-pong between two processes, round trip, on one processor (a switch of processes) and on two (a sleeping
// processor must be woken); the peer is the bare eventfd ping-pong that both must pay.
// Throughput: 4 MB gradients, the other process adds them to its parameters; the peers are the same addition without any
// transport, and two processes that copy, raise a flag and spin.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/transport/shm.h"
#include "tests/bench/bench.h"

namespace {

using namespace downpour;
using namespace downpour::transport;
using bench::Better, bench::Line, bench::Rounds;

constexpr std::size_t kPushFloats = 1 << 20;
constexpr std::size_t kPushBytes = 4 * kPushFloats;
constexpr int kSlots = 4;
constexpr int kPingPongs = 2000;
constexpr int kPushes = 32;
constexpr int kRounds = 15;
constexpr std::uint16_t kPing = 100;
constexpr std::uint16_t kGradient = 101;
constexpr const char* kInPlace = "shm.push_4mb_in_place_add";
constexpr const char* kCopied = "shm.push_4mb_copied_add";

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const cpu_set_t kAllowed = [] {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  return allowed;
}();

void run_on(int which, pid_t process = 0) {
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &kAllowed) && seen++ == which) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(process, sizeof(one), &one);
    }
  }
}

// The other process; ended by destruction.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      body();
      _exit(0);
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void run_on(int which) const { ::run_on(which, pid_); }

 private:
  pid_t pid_;
};

// The simplest rule of a server; the compiler vectorises it.
void add(float* __restrict parameters, const float* __restrict gradient) {
  for (std::size_t i = 0; i < kPushFloats; ++i) {
    parameters[i] += gradient[i];
  }
}

float* zeroes(std::size_t floats, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
  void* memory = mmap(nullptr, floats * sizeof(float), PROT_READ | PROT_WRITE, flags, -1, 0);
  DOWNPOUR_CHECK(memory != MAP_FAILED, "no memory for the benchmark");
  auto* values = static_cast<float*>(memory);
  std::fill(values, values + floats, 0.0f);
  return values;
}

// ---- the peers ---------------------------------------------------------------------------------

struct BarePingPong {
  Fd there{eventfd(0, EFD_CLOEXEC)};
  Fd back{eventfd(0, EFD_CLOEXEC)};
  Child child{[this] { answer(); }};

  void answer() const {
    eventfd_t count = 0;
    while (eventfd_read(there.get(), &count) == 0 && eventfd_write(back.get(), 1) == 0) {
    }
  }
  void round_trip() const {
    eventfd_t count = 0;
    eventfd_write(there.get(), 1);
    eventfd_read(back.get(), &count);
  }
};

struct BareCopyPipeline {
  float* slots = zeroes(kSlots * kPushFloats, MAP_SHARED | MAP_ANONYMOUS);
  std::atomic<std::uint64_t>* words =
      reinterpret_cast<std::atomic<std::uint64_t>*>(zeroes(1024, MAP_SHARED | MAP_ANONYMOUS));
  std::atomic<std::uint64_t>& pushed = words[0];
  std::atomic<std::uint64_t>& added = words[64];
  Child child{[this] { serve(); }};

  void serve() {
    float* parameters = zeroes(kPushFloats);
    for (std::uint64_t number = 0;; ++number) {
      while (pushed.load(std::memory_order_acquire) == number) {
        pause();
      }
      add(parameters, slots + number % kSlots * kPushFloats);
      added.store(number + 1, std::memory_order_release);
    }
  }
  void push(const float* gradient, int count) {
    const std::uint64_t end = pushed.load() + static_cast<std::uint64_t>(count);
    for (std::uint64_t number = pushed.load(); number < end; ++number) {
      while (added.load(std::memory_order_acquire) + kSlots <= number) {
        pause();
      }
      std::memcpy(slots + number % kSlots * kPushFloats, gradient, kPushBytes);
      pushed.store(number + 1, std::memory_order_release);
    }
    while (added.load(std::memory_order_acquire) < end) {
      pause();
    }
  }
  static void pause() { std::atomic_signal_fence(std::memory_order_seq_cst); }
};

// ---- ours --------------------------------------------------------------------------------------

struct Worker : Receiver {
  void on_message(Connection&, const Message&) override { ++answers; }
  void on_closed(Connection&, std::exception_ptr) override { std::abort(); }
  std::uint64_t answers = 0;
};

// Answers pings; adds gradients and gives their credits back.
struct Server : Receiver {
  void on_message(Connection& connection, const Message& message) override {
    if (message.type == kPing) {
      connection.send(kPing, message.body);
      return;
    }
    add(parameters, reinterpret_cast<const float*>(message.bulk.data()));
    connection.grant(1);
  }
  void on_closed(Connection&, std::exception_ptr) override { _exit(0); }
  float* parameters = zeroes(kPushFloats);
};

struct Ours {
  explicit Ours(Duration spin_of_server) : spin(spin_of_server) {
    connection = connect(Side::kConnector, worker);
    end_of_server = {};
  }

  // Forks first: a loop does not survive a fork.
  std::unique_ptr<Connection> connect(Side side, Receiver& receiver) {
    ShmEnd& end = side == Side::kAcceptor ? end_of_server : end_of_worker;
    end.side = side;
    return make_shm_connection(*(loop = std::make_unique<Loop>(clock)), std::move(end), {}, welcome, receiver,
                               "the other (shm)", 4096);
  }
  void serve() {
    end_of_worker = {};
    Server server;
    const auto to_worker = connect(Side::kAcceptor, server);
    for (;;) {
      loop->run_once(loop->now() + std::chrono::seconds(60), spin);
    }
  }
  ShmEnd end_of(int mine, const Fd& sleeps_on, const Fd& rings) const {
    return {Side::kAcceptor, Fd(mine), segment, Fd(dup(sleeps_on.get())), Fd(dup(rings.get()))};
  }
  int make_sockets() {
    int sockets[2];
    DOWNPOUR_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair failed");
    const Fd bells[2] = {Fd(eventfd(0, EFD_CLOEXEC)), Fd(eventfd(0, EFD_CLOEXEC))};
    end_of_server = end_of(sockets[0], bells[0], bells[1]);
    end_of_worker = end_of(sockets[1], bells[1], bells[0]);
    return 0;
  }

  void round_trip(Duration spin_of_worker) {
    const std::uint64_t before = worker.answers;
    connection->send(kPing, ping);
    loop->run_until([&] { return worker.answers > before; }, loop->now() + std::chrono::seconds(60), spin_of_worker);
  }
  MutableBytes slot(int which) {
    return connection->outgoing().subspan(static_cast<std::size_t>(which) * kPushBytes, kPushBytes);
  }
  // `from` empty: the gradient lies in its slot already.
  void push(Bytes from, int count) {
    const TimePoint deadline = loop->now() + std::chrono::seconds(60);
    for (int number = 0; number < count; ++number) {
      loop->run_until([&] { return connection->credits() > 0; }, deadline);
      const Bytes in_place = slot(number % kSlots);
      connection->put(kGradient, {}, from.empty() ? in_place : from,
                      static_cast<std::size_t>(number % kSlots) * kPushBytes, Credit::kTake);
    }
    loop->run_until([&] { return connection->credits() == kSlots; }, deadline);
  }

  Duration spin;
  Welcome welcome{.to_acceptor_window_bytes = kSlots * kPushBytes, .credits = kSlots, .body = {}};
  std::shared_ptr<Segment> segment = Segment::create({.to_acceptor_window_bytes = kSlots * kPushBytes});
  ShmEnd end_of_server, end_of_worker;
  int sockets_made = make_sockets();
  std::array<std::byte, 64> ping{};
  SteadyClock clock;
  std::unique_ptr<Loop> loop;
  Child child{[this] { serve(); }};
  Worker worker;
  std::unique_ptr<Connection> connection;
};

// ---- measuring ---------------------------------------------------------------------------------

template <typename Act>
void time_each(Rounds& samples, int count, Act act) {
  for (int i = 0; i < count; ++i) {
    const double start = now_us();
    act();
    samples.add(now_us() - start);
  }
}

struct PingPong {
  Rounds bare_us, ours_us;
  void print(const char* name) const {
    Line(concat("shm.pingpong_64b_", name, "p50"), ours_us, Better::kLess, "us")
        .beside("eventfd", bare_us)
        .add("p99", at(ours_us, 0.99))
        .add("peer_p99", at(bare_us, 0.99))
        .print();
  }
  static double at(const Rounds& rounds, double quantile) {
    auto values = rounds.values;
    std::ranges::sort(values);
    return values[static_cast<std::size_t>(quantile * static_cast<double>(values.size() - 1))];
  }
};

void ping_pong(Ours& asleep, Ours& awake) {
  BarePingPong bare;
  PingPong one_processor, two_processors, one_spins, both_spin;
  const auto spin = std::chrono::microseconds(50);
  const auto measure = [&](PingPong& samples, Ours& ours, Duration spin_of_worker, int processor) {
    bare.child.run_on(processor);
    ours.child.run_on(processor);
    time_each(samples.bare_us, kPingPongs, [&] { bare.round_trip(); });
    time_each(samples.ours_us, kPingPongs, [&] { ours.round_trip(spin_of_worker); });
  };
  for (int round = 0; round < kRounds; ++round) {
    measure(one_processor, asleep, Duration::zero(), 0);
    measure(two_processors, asleep, Duration::zero(), 1);
    measure(one_spins, asleep, spin, 1);
    measure(both_spin, awake, spin, 1);
  }
  one_processor.print("");
  two_processors.print("two_processors_");
  one_spins.print("one_spins_");
  both_spin.print("both_spin_");
}

// GB/s of all pushes together.
template <typename Act>
void add_rate(Rounds& rates, Act act) {
  const double start = now_us();
  act();
  rates.add(kPushes * static_cast<double>(kPushBytes) / 1e3 / (now_us() - start));
}

void pushes(Ours& ours) {
  BareCopyPipeline bare;
  bare.child.run_on(1);
  ours.child.run_on(1);
  float* mine = zeroes(kPushFloats);
  float* slots = zeroes(kSlots * kPushFloats);
  float* parameters = zeroes(kPushFloats);
  const Bytes gradient = std::as_bytes(std::span(mine, kPushFloats));
  Rounds add_rates, in_place_rates, bare_rates, copied_rates;
  const auto add_alone = [&] {
    for (int i = 0; i < kPushes; ++i) {
      add(parameters, slots + static_cast<std::size_t>(i % kSlots) * kPushFloats);
    }
  };
  ours.push(gradient, 2 * kSlots);  // first touches
  for (int round = 0; round < 2 * kRounds; ++round) {
    add_rate(add_rates, add_alone);
    add_rate(in_place_rates, [&] { ours.push({}, kPushes); });
    add_rate(bare_rates, [&] { bare.push(mine, kPushes); });
    add_rate(copied_rates, [&] { ours.push(gradient, kPushes); });
  }
  Line(kInPlace, in_place_rates, Better::kMore, "GB/s").beside("add alone", add_rates).print();
  Line(kCopied, copied_rates, Better::kMore, "GB/s").beside("copy, flag, spin, add", bare_rates).print();
}

}  // namespace

int main(int argc, char** argv) {
  bench::take_filter(argc, argv);
  run_on(0);
  Ours asleep(Duration::zero());
  Ours awake(std::chrono::microseconds(50));
  if (bench::is_any_wanted({"shm.pingpong_64b_p50", "shm.pingpong_64b_two_processors_p50",
                            "shm.pingpong_64b_one_spins_p50", "shm.pingpong_64b_both_spin_p50"})) {
    ping_pong(asleep, awake);
  }
  if (bench::is_any_wanted({kInPlace, kCopied})) {
    pushes(asleep);
  }
}
