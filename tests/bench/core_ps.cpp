// The parameter server beside the machine's own limits: a worker process and a server process, and in the same run, in turn,
// a pair of processes that only copies and applies the rule. Best and median of the rounds, one JSON object a line.
//
// Conditions, on both sides: 4 MB pushes from an ordinary warm array, depth 8 (eight pushes, then all acknowledged), 512 KiB
// pieces, one thread each. Ours checks every gradient for NaN and Inf, keeps it for replay, and acknowledges it as applied.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "csrc/base/malloc_settings.h"
#include "csrc/ps/client.h"
#include "csrc/ps/server.h"
#include "csrc/transport/tcp.h"

namespace {
std::atomic<std::uint64_t> g_allocations{0};
}

void* operator new(std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace downpour;
using namespace downpour::ps;
using transport::SharedMemory;

constexpr std::int64_t kElements = 1 << 20;
constexpr std::int64_t kBytes = kElements * 4;
constexpr std::int64_t kPiece = 512 * 1024;
constexpr int kDepth = 8;
constexpr int kRounds = 61;
constexpr std::uint64_t kJob = 42;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Rates {
  std::vector<double> values;
  double best() const { return *std::max_element(values.begin(), values.end()); }
  double median() const {
    auto sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

void print(const std::string& name, double value, const char* unit, const char* peer, double peer_value) {
  std::printf("{\"name\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3f}\n",
              name.c_str(), value, unit, peer, peer_value, peer_value != 0 ? value / peer_value : 0);
  std::fflush(stdout);
}

// The ratio is the median of the pairs: the machine's drift hits both halves of a pair.
void print_rates(const std::string& name, const Rates& ours, const char* peer, const Rates& theirs) {
  Rates ratios;
  for (std::size_t i = 0; i < ours.values.size(); ++i) {
    ratios.values.push_back(ours.values[i] / theirs.values[i]);
  }
  std::printf("{\"name\":\"%s\",\"value\":%.2f,\"best\":%.2f,\"unit\":\"GB/s\",\"peer\":\"%s\",\"peer_value\":%.2f,"
              "\"peer_best\":%.2f,\"ratio\":%.3f,\"ratio_best\":%.3f}\n",
              name.c_str(), ours.median(), ours.best(), peer, theirs.median(), theirs.best(), ratios.median(),
              ours.best() / theirs.best());
  std::fflush(stdout);
}

// ---- another process ------------------------------------------------------------------------------------------------

// A child that answers one-byte commands on a socket pair; ended by destruction.
class Child {
 public:
  explicit Child(const std::function<void(int socket)>& body) {
    int ends[2];
    DOWNPOUR_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair failed");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body(ends[1]);
      std::_Exit(0);
    }
    ::close(ends[1]);
    socket_ = Fd(ends[0]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int socket() const { return socket_.get(); }
  void command(char c) { DOWNPOUR_CHECK(::write(socket(), &c, 1) == 1, "the child is gone"); }
  char answer() {
    char c = 0;
    DOWNPOUR_CHECK(::read(socket(), &c, 1) == 1, "the child is gone");
    return c;
  }
  template <typename T>
  T ask(char c) {
    command(c);
    T value;
    DOWNPOUR_CHECK(::read(socket(), &value, sizeof(value)) == sizeof(value), "the child is gone");
    return value;
  }

 private:
  pid_t pid_ = 0;
  Fd socket_;
};

// ---- ours -----------------------------------------------------------------------------------------------------------

Agreement agreement_of(std::int64_t elements, RuleKind rule) {
  Agreement agreement;
  agreement.schema.parameters = {{"w", {elements}, Dtype::kFloat32, 0}};
  agreement.schema.rule = rule;
  return agreement;
}

struct Usage {
  double cpu_s;
  std::int64_t faults;
  std::uint64_t allocations;
};
Usage usage() {
  rusage self{};
  ::getrusage(RUSAGE_SELF, &self);
  const auto of = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return {of(self.ru_utime) + of(self.ru_stime), self.ru_minflt, g_allocations.load()};
}

void serve(int socket, const Agreement& agreement, SharedMemory shared_memory) {
  SteadyClock clock;
  transport::Loop loop(clock);
  const auto files = disk_files();
  ShardServer server(loop, agreement, 0, 1, kJob, SnapshotOptions{}, *files);
  auto listening = transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly);
  const std::uint16_t port = transport::local_address(listening.get()).port;
  const auto listener = transport::listen_tcp(loop, std::move(listening), server, shared_memory,
                                              transport::Exposure::kLoopbackOnly);
  [[maybe_unused]] auto written = ::write(socket, &port, sizeof(port));
  bool end = false;
  loop.watch(socket, 1 /* EPOLLIN */, [&](std::uint32_t) {
    char c = 0;
    if (::read(socket, &c, 1) != 1) {
      end = true;
    } else {
      const Usage u = usage();
      written = ::write(socket, &u, sizeof(u));
    }
  });
  while (!end) {
    loop.run_once(clock.now() + std::chrono::seconds(10));
  }
}

class LoopbackConnector final : public Connector {
 public:
  LoopbackConnector(std::uint16_t port, SharedMemory shared_memory) : port_(port), shared_memory_(shared_memory) {}
  std::unique_ptr<transport::Connection> connect(int, const transport::Hello& hello, transport::Receiver& receiver,
                                                 const transport::ConnectOptions& options) override {
    return transport::connect_tcp(loop_, {"127.0.0.1", port_}, hello, receiver, shared_memory_,
                                  transport::Exposure::kLoopbackOnly, options);
  }
  bool run_once(TimePoint deadline, Duration spin) override { return loop_.run_once(deadline, spin); }
  TimePoint now() const override { return clock_.now(); }

 private:
  SteadyClock clock_;
  transport::Loop loop_{clock_};
  std::uint16_t port_;
  SharedMemory shared_memory_;
};

// A server process and this process's client of it.
class Ours {
 public:
  Ours(std::int64_t elements, RuleKind rule, SharedMemory shared_memory)
      : child_([&](int socket) { serve(socket, agreement_of(elements, rule), shared_memory); }),
        connector_(port(), shared_memory),
        client_(agreement_of(elements, rule).schema, 1, connector_, options()),
        gradient_(static_cast<std::size_t>(elements), 1e-6f),
        values_(static_cast<std::size_t>(elements), 1.0f) {
    client_.open();
    const std::vector<double> accumulators(1, 0.1);
    client_.initialise([&](std::uint32_t) { return values_.data(); }, accumulators);
    hyper_.lr = 1e-6;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(gradient_.size()) * 4; }
  void push() {
    client_.begin_push(0);
    client_.add_gradient(0, gradient_.data());
    client_.end_push({&hyper_, 1});
  }
  void settle() { client_.settle(); }
  void pull() {
    client_.begin_pull();
    client_.finish_pull([&](const Slice&, std::int64_t begin, std::int64_t count, const void* source) {
      std::memcpy(values_.data() + begin, source, static_cast<std::size_t>(count) * sizeof(float));
    });
  }
  double push_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      push();
    }
    settle();
    return kDepth * static_cast<double>(bytes()) / (now_s() - begin) / 1e9;
  }
  double pull_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      pull();
    }
    return kDepth * static_cast<double>(bytes()) / (now_s() - begin) / 1e9;
  }
  Usage server_usage() { return child_.ask<Usage>('u'); }
  std::uint16_t the_port() const { return port_; }

 private:
  std::uint16_t port() {
    DOWNPOUR_CHECK(::read(child_.socket(), &port_, sizeof(port_)) == sizeof(port_), "the server is gone");
    return port_;
  }
  static ClientOptions options() {
    ClientOptions options;
    options.job = kJob;
    options.fragment_bytes = kPiece;
    return options;
  }

  std::uint16_t port_ = 0;
  Child child_;
  LoopbackConnector connector_;
  Client client_;
  std::vector<float> gradient_, values_;
  Hyper hyper_;
};

// ---- the limits -----------------------------------------------------------------------------------------------------

// Memory of two processes; both look at the counters without sleeping, so nothing is faster on this machine.
struct Shared {
  alignas(64) std::atomic<std::int64_t> produced{0};  // pieces
  alignas(64) std::atomic<std::int64_t> consumed{0};
};
constexpr int kSlots = 64;  // as many as the replay budget gives ours

class Limit {
 public:
  explicit Limit(RuleKind rule) : gradient_(kElements, 1e-6f), values_(kElements, 1.0f) {
    void* memory = ::mmap(nullptr, sizeof(Shared) + 4096 + kSlots * kBytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    DOWNPOUR_CHECK(memory != MAP_FAILED, "mmap failed");
    shared_ = new (memory) Shared;
    slots_ = static_cast<std::byte*>(memory) + 4096;
    child_ = std::make_unique<Child>([this, rule](int socket) { consume(socket, rule); });
  }
  // [pushes] copy into the slots here, rule there.
  double push_round() {
    child_->command('p');
    child_->answer();
    const double begin = now_s();
    const std::int64_t first = shared_->produced.load();
    for (std::int64_t i = 0; i < kDepth * pieces(); ++i) {
      std::memcpy(piece(first + i), reinterpret_cast<const std::byte*>(gradient_.data()) + i % pieces() * kPiece, kPiece);
      shared_->produced.store(first + i + 1, std::memory_order_release);
    }
    while (shared_->consumed.load(std::memory_order_acquire) < first + kDepth * pieces()) {
    }
    return kDepth * static_cast<double>(kBytes) / (now_s() - begin) / 1e9;
  }
  // [pulls] copy into the slots there, out of them here; one 4 MB slot, as ours has.
  double pull_round() {
    const std::int64_t first = shared_->consumed.load();
    child_->command('l');
    child_->answer();
    const double begin = now_s();
    for (std::int64_t i = 0; i < kDepth * pieces(); ++i) {
      if (i % pieces() == 0) {
        shared_->produced.store(first + i, std::memory_order_release);  // asks for the next 4 MB
      }
      while (shared_->consumed.load(std::memory_order_acquire) <= first + i) {
      }
      std::memcpy(reinterpret_cast<std::byte*>(values_.data()) + i % pieces() * kPiece, slots_ + i % pieces() * kPiece, kPiece);
    }
    shared_->produced.store(first + kDepth * pieces(), std::memory_order_release);
    return kDepth * static_cast<double>(kBytes) / (now_s() - begin) / 1e9;
  }

 private:
  static constexpr std::int64_t pieces() { return kBytes / kPiece; }
  std::byte* piece(std::int64_t i) { return slots_ + i % (kSlots * pieces()) * kPiece; }

  void consume(int socket, RuleKind rule) {
    std::vector<float> values(kElements, 1.0f), state(kElements, 0.1f);
    Hyper hyper;
    hyper.lr = 1e-6;
    for (char c = 0; ::read(socket, &c, 1) == 1;) {
      const std::int64_t first = shared_->consumed.load();
      [[maybe_unused]] auto written = ::write(socket, &c, 1);
      for (std::int64_t i = 0; i < kDepth * pieces(); ++i) {
        if (c == 'p') {
          while (shared_->produced.load(std::memory_order_acquire) <= first + i) {
          }
          const std::int64_t at = i % pieces() * (kPiece / 4);
          apply_rule(rule, hyper, Dtype::kFloat32, kPiece / 4, 1, values.data() + at, piece(first + i),
                     {state.data() + at, nullptr, nullptr});
        } else {
          while (i % pieces() == 0 && shared_->produced.load(std::memory_order_acquire) < first + i) {
          }
          std::memcpy(slots_ + i % pieces() * kPiece, reinterpret_cast<std::byte*>(values.data()) + i % pieces() * kPiece, kPiece);
        }
        shared_->consumed.store(first + i + 1, std::memory_order_release);
      }
    }
  }

  Shared* shared_ = nullptr;
  std::byte* slots_ = nullptr;
  std::vector<float> gradient_, values_;
  std::unique_ptr<Child> child_;
};

// A raw loopback socket: blocking reads and writes of whole pieces, the rule on arrival, one byte back per 4 MB.
class SocketLimit {
 public:
  explicit SocketLimit(RuleKind rule) : gradient_(kElements, 1e-6f), values_(kElements, 1.0f) {
    Fd listening = transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly);
    ::listen(listening.get(), 1);
    const std::uint16_t port = transport::local_address(listening.get()).port;
    child_ = std::make_unique<Child>([&](int) { consume(listening.get(), rule); });
    socket_ = Fd(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    DOWNPOUR_CHECK(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "connect failed");
  }
  double push_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      send_all(socket_.get(), "p", 1);
      send_all(socket_.get(), gradient_.data(), kBytes);
    }
    char answers[kDepth];
    receive_all(socket_.get(), answers, kDepth);
    return kDepth * static_cast<double>(kBytes) / (now_s() - begin) / 1e9;
  }
  double pull_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      send_all(socket_.get(), "l", 1);
      receive_all(socket_.get(), values_.data(), kBytes);
    }
    return kDepth * static_cast<double>(kBytes) / (now_s() - begin) / 1e9;
  }

 private:
  static void send_all(int fd, const void* data, std::int64_t count) {
    for (std::int64_t done = 0; done < count;) {
      const ssize_t n = ::send(fd, static_cast<const char*>(data) + done, static_cast<std::size_t>(count - done), MSG_NOSIGNAL);
      DOWNPOUR_CHECK(n > 0, "send failed");
      done += n;
    }
  }
  static bool receive_all(int fd, void* data, std::int64_t count) {
    for (std::int64_t done = 0; done < count;) {
      const ssize_t n = ::recv(fd, static_cast<char*>(data) + done, static_cast<std::size_t>(count - done), 0);
      if (n <= 0) {
        return false;
      }
      done += n;
    }
    return true;
  }
  static void consume(int listening, RuleKind rule) {
    const int fd = ::accept(listening, nullptr, nullptr);
    std::vector<float> staging(kElements), values(kElements, 1.0f), state(kElements, 0.1f);
    Hyper hyper;
    hyper.lr = 1e-6;
    for (char c = 0; receive_all(fd, &c, 1);) {
      if (c == 'l') {
        send_all(fd, values.data(), kBytes);
        continue;
      }
      for (std::int64_t at = 0; at < kElements; at += kPiece / 4) {
        receive_all(fd, staging.data() + at, kPiece);
        apply_rule(rule, hyper, Dtype::kFloat32, kPiece / 4, 1, values.data() + at, staging.data() + at,
                   {state.data() + at, nullptr, nullptr});
      }
      send_all(fd, "k", 1);
    }
  }

  std::vector<float> gradient_, values_;
  std::unique_ptr<Child> child_;
  Fd socket_;
};

// ---- the figures ----------------------------------------------------------------------------------------------------

template <typename A, typename B>
void in_turn(const std::string& name, const A& ours, const char* peer, const B& theirs) {
  for (int i = 0; i < 16; ++i) {  // touches every slot
    ours();
    theirs();
  }
  Rates a, b;
  for (int i = 0; i < kRounds; ++i) {
    a.values.push_back(ours());
    b.values.push_back(theirs());
  }
  print_rates(name, a, peer, b);
}

void push_figures(const char* rule_name, RuleKind rule) {
  Ours ours(kElements, rule, SharedMemory::kRequire);
  Limit limit(rule);
  in_turn(concat("ps.push_4mb.", rule_name, ".shm"), [&] { return ours.push_round(); }, "copy + rule, two processes",
          [&] { return limit.push_round(); });
}

// A second worker pushes as fast as it can while the first one pulls.
void pull_figure() {
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kRequire);
  Limit limit(RuleKind::kSgd);
  in_turn("ps.pull_4mb.alone.shm", [&] { return ours.pull_round(); }, "copy, two processes", [&] { return limit.pull_round(); });
  const std::uint16_t port = ours.the_port();
  Child pusher([&](int socket) {
    LoopbackConnector connector(port, SharedMemory::kRequire);
    ClientOptions options;
    options.job = kJob;
    options.rank = 1;
    Client client(agreement_of(kElements, RuleKind::kSgd).schema, 1, connector, options);
    client.open();
    std::vector<float> gradient(kElements, 1e-6f);
    Hyper hyper;
    hyper.lr = 1e-6;
    for (char c = 0; ::read(socket, &c, 1) == 1;) {
      for (bool go = true; go;) {
        client.begin_push(0);
        client.add_gradient(0, gradient.data());
        client.end_push({&hyper, 1});
        client.settle();
        go = ::recv(socket, &c, 1, MSG_DONTWAIT) != 1;
      }
    }
  });
  // The peer has the same competitor: the pusher works against our server during both.
  pusher.command('g');
  in_turn("ps.pull_4mb.shm", [&] { return ours.pull_round(); }, "copy, two processes, same competitor",
          [&] { return limit.pull_round(); });
  pusher.command('s');
}

void tcp_figures() {
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kNever);
  SocketLimit limit(RuleKind::kSgd);
  in_turn("ps.push_4mb.sgd.tcp", [&] { return ours.push_round(); }, "raw loopback socket + rule", [&] { return limit.push_round(); });
  in_turn("ps.pull_4mb.tcp", [&] { return ours.pull_round(); }, "raw loopback socket", [&] { return limit.pull_round(); });
}

void steady_state_figures() {
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kRequire);
  const auto step = [&] {
    ours.push();
    ours.pull();
  };
  for (int i = 0; i < 200; ++i) {
    step();
  }
  ours.server_usage();
  const Usage w0 = usage(), s0 = ours.server_usage();
  constexpr int kSteps = 500;
  for (int i = 0; i < kSteps; ++i) {
    step();
  }
  const Usage w1 = usage(), s1 = ours.server_usage();
  const double gb = kSteps * 2.0 * static_cast<double>(kBytes) / 1e9;
  print("ps.push_pull.shm.cpu_s_per_gb", (w1.cpu_s - w0.cpu_s + s1.cpu_s - s0.cpu_s) / gb, "CPU s/GB", "goal", 0.35);
  print("ps.steady_state.allocations", static_cast<double>(w1.allocations - w0.allocations + s1.allocations - s0.allocations) / kSteps,
        "per step", "goal", 0);
  print("ps.steady_state.page_faults", static_cast<double>(w1.faults - w0.faults + s1.faults - s0.faults) / kSteps, "per step",
        "goal", 0);
}

double push_latency_us(SharedMemory shared_memory) {
  Ours ours(1, RuleKind::kSgd, shared_memory);
  std::vector<double> times;
  for (int i = 0; i < 6000; ++i) {
    const double begin = now_s();
    ours.push();
    ours.settle();
    if (i >= 1000) {
      times.push_back((now_s() - begin) * 1e6);
    }
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  keep_freed_memory();  // the same malloc settings on both sides
  push_figures("sgd", RuleKind::kSgd);
  push_figures("adagrad", RuleKind::kAdagrad);
  pull_figure();
  tcp_figures();
  steady_state_figures();
  print("ps.push_4b.shm.p50", push_latency_us(SharedMemory::kRequire), "us", "goal", 40);
  print("ps.push_4b.tcp.p50", push_latency_us(SharedMemory::kNever), "us", "", 0);
}
