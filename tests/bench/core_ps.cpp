// The parameter server beside the machine's own limits (limits.h), in turn in one run under the same malloc settings.
//
// Ours is what a job runs: a ShardThread in a process of its own with its snapshots on, and a Client here. Each gradient comes
// from an ordinary warm array, is kept for a replay, checked for NaN and Inf, and is acknowledged as applied. 4 MB pushes,
// depth 8 (eight pushes, then all acknowledged). The limits move pieces of 512 KiB, and so does ours over TCP; over shared memory
// it sends one message a push.
#include <sys/epoll.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "csrc/base/malloc_settings.h"
#include "csrc/ps/client.h"
#include "csrc/ps/shard_thread.h"
#include "csrc/transport/tcp.h"
#include "tests/bench/bench.h"
#include "tests/bench/limits.h"

namespace {
std::atomic<std::uint64_t> g_allocations{0};

void* counted(void* memory) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
}  // namespace

// The forms that are not here call these.
void* operator new(std::size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto line = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(line, (size + line - 1) / line * line));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

using namespace downpour;
using namespace downpour::ps;
using namespace downpour::bench;
using transport::SharedMemory;

constexpr int kWarm = 16;  // rounds of eight pushes: twice through every slot of the replay log
constexpr int kRounds = 101;
constexpr std::uint64_t kJob = 42;

// ---- the server -----------------------------------------------------------------------------------------------------

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
  return {of(self.ru_utime) + of(self.ru_stime), self.ru_minflt + self.ru_majflt, g_allocations.load()};
}

// As a job starts it, with snapshots as often as they please; or with none after the first one, so that what a step costs is
// not mixed with what a snapshot costs. Pushes are kept for a replay in both cases.
enum class Snapshots { kUsual, kFirstOnly };

SnapshotOptions snapshot_options(const std::filesystem::path& folder, Snapshots snapshots) {
  SnapshotOptions options;
  options.folder = folder;
  if (snapshots == Snapshots::kFirstOnly) {
    options.interval = std::chrono::hours(24);
    options.replay_fraction = 1e9;
  }
  return options;
}

struct Doorman final : transport::Acceptor {
  explicit Doorman(ShardServer& the_server) : server(the_server) {}
  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override {
    return server.admit(hello, medium);
  }
  void on_connection(std::unique_ptr<transport::Connection> connection) override {
    server.on_connection(std::move(connection));
  }
  ShardServer& server;
};

// A server process: says its port, then answers 'u' with its usage.
void serve(int socket, const Agreement& agreement, SharedMemory shared_memory, const SnapshotOptions& snapshots) {
  const SteadyClock clock;
  transport::Loop loop(clock);
  const auto files = disk_files();
  ServerOptions options;
  options.job = kJob;
  options.snapshots = snapshots;
  std::promise<void> ready;
  ShardThread shard(clock, agreement, 0, 1, options, *files, [&](const std::exception_ptr& why) {
    if (why != nullptr) {
      std::abort();
    }
    ready.set_value();
  });
  ready.get_future().wait();
  Doorman doorman(shard.server());
  auto listening = transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly);
  reply(socket, transport::local_address(listening.get()).port);
  const auto listener =
      transport::listen_tcp(loop, std::move(listening), doorman, shared_memory, transport::Exposure::kLoopbackOnly);
  bool end = false;
  loop.watch(socket, EPOLLIN, [&](std::uint32_t) {
    end = next_command(socket) == 0;
    if (!end) {
      reply(socket, usage());
    }
  });
  while (!end) {
    loop.run_once(clock.now() + std::chrono::seconds(10));
  }
}

// ---- a worker -------------------------------------------------------------------------------------------------------

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

class Worker {
 public:
  Worker(std::int64_t elements, RuleKind rule, SharedMemory shared_memory, std::uint16_t port, int rank)
      : connector_(port, shared_memory),
        client_(agreement_of(elements, rule).schema, 1, connector_, options(rank)),
        gradient_(static_cast<std::size_t>(elements), 1e-6f),
        values_(static_cast<std::size_t>(elements), 1.0f) {
    client_.open();
    const std::vector<double> accumulators(1, 0.1);
    client_.initialise([&](std::uint32_t) { return values_.data(); }, accumulators);
    hyper_.lr = 1e-6;
  }
  void push() {
    client_.begin_push(0);
    client_.add_gradient(0, gradient_.data());
    client_.end_push({&hyper_, 1});
    ++pushed_;
  }
  void settle() {
    const StepReport report = client_.settle();
    DOWNPOUR_CHECK(report.applied == pushed_, report.applied, " of ", pushed_, " pushes were applied");
    pushed_ = 0;
  }
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
    return gb_per_s(kDepth * bytes(), now_s() - begin);
  }
  double pull_round() {
    const double begin = now_s();
    for (int i = 0; i < kDepth; ++i) {
      pull();
    }
    return gb_per_s(kDepth * bytes(), now_s() - begin);
  }

 private:
  static ClientOptions options(int rank) {
    ClientOptions options;
    options.job = kJob;
    options.rank = rank;
    options.fragment_bytes = kPiece;
    return options;
  }
  double bytes() const { return 4.0 * static_cast<double>(gradient_.size()); }

  LoopbackConnector connector_;
  Client client_;
  Floats gradient_, values_;
  Hyper hyper_;
  std::uint64_t pushed_ = 0;
};

struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "downpour-bench-XXXXXX").string();
    DOWNPOUR_CHECK(::mkdtemp(name.data()) != nullptr, "no folder for snapshots: ", name);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

// A server process and this process's worker.
class Ours {
 public:
  Ours(std::int64_t elements, RuleKind rule, SharedMemory shared_memory, Snapshots snapshots = Snapshots::kUsual)
      : server_([&](int socket) {
          serve(socket, agreement_of(elements, rule), shared_memory, snapshot_options(folder_.path, snapshots));
        }),
        port_(server_.answer<std::uint16_t>()),
        worker_(elements, rule, shared_memory, port_, 0) {}
  Worker* operator->() { return &worker_; }
  std::uint16_t port() const { return port_; }
  Usage server_usage() { return server_.ask<Usage>('u'); }

 private:
  Folder folder_;
  Child server_;
  std::uint16_t port_;
  Worker worker_;
};

// ---- the figures ----------------------------------------------------------------------------------------------------

using Measure = std::function<double()>;

// Every arm once, then again: A B C A B C.
std::vector<Rounds> in_turn(const std::vector<Measure>& arms) {
  std::vector<Rounds> rounds(arms.size());
  for (int i = -kWarm; i < kRounds; ++i) {
    for (std::size_t arm = 0; arm < arms.size(); ++arm) {
      const double value = arms[arm]();
      if (i >= 0) {
        rounds[arm].add(value);
      }
    }
  }
  return rounds;
}

Line line(const std::string& name, const std::vector<Rounds>& rounds, const char* peer) {
  Line line(name, rounds[0], Better::kMore, "GB/s");
  line.beside(peer, rounds[1]);
  return line;
}

// The peer needs as many slots as are under way. Ours needs as many as the replay budget (256 MB) allows, which no cache holds:
// ratio_same_memory is over a peer that goes round as much memory, and tells what the replay costs apart from the rest.
void push_figure(const char* rule_name, RuleKind rule) {
  const std::string name = concat("ps.push_4mb.", rule_name, ".shm");
  if (!is_wanted(name)) {
    return;
  }
  Ours ours(kElements, rule, SharedMemory::kRequire);
  PushLimit limit(rule, kDepth), wide_limit(rule, 64);
  const auto rounds =
      in_turn({[&] { return ours->push_round(); }, [&] { return limit.round(); }, [&] { return wide_limit.round(); }});
  line(name, rounds, "copy + rule, two processes, 8 slots")
      .ratio_at_least(0.85)
      .add("peer_64_slots_value", rounds[2].median())
      .add("ratio_same_memory", rounds[0].over(rounds[2]).median())
      .print();
}

void pull_figure() {
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kRequire);
  PullLimit limit;
  if (is_wanted("ps.pull_4mb.alone.shm")) {
    const auto rounds = in_turn({[&] { return ours->pull_round(); }, [&] { return limit.round(); }});
    line("ps.pull_4mb.alone.shm", rounds, "copy, two processes").print();
  }
  if (!is_wanted("ps.pull_4mb.shm")) {
    return;
  }
  // A second worker pushes as fast as it can, each push acknowledged before the next; beside the peer, the peer's.
  Competitor our_pusher([&]() -> std::function<void()> {
    auto worker = std::make_shared<Worker>(kElements, RuleKind::kSgd, SharedMemory::kRequire, ours.port(), 1);
    return [worker] {
      worker->push();
      worker->settle();
    };
  });
  Competitor their_pusher([&] { return limit.pusher(); });
  Rounds pushes[2];
  const auto against = [&](Competitor& pusher, Rounds& rates, const Measure& measure) {
    pusher.start();
    const double value = measure();
    rates.add(gb_per_s(kBytes, 1 / pusher.stop()));
    return value;
  };
  const auto rounds = in_turn({[&] { return against(our_pusher, pushes[0], [&] { return ours->pull_round(); }); },
                               [&] { return against(their_pusher, pushes[1], [&] { return limit.round(); }); }});
  line("ps.pull_4mb.shm", rounds, "copy, two processes, a third one pushes")
      .ratio_at_least(0.85)
      .add("pusher_value", pushes[0].median())
      .add("peer_pusher_value", pushes[1].median())
      .print();
}

void tcp_figures() {
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kNever);
  SocketLimit limit(RuleKind::kSgd);
  if (is_wanted("ps.push_4mb.sgd.tcp")) {
    const auto rounds = in_turn({[&] { return ours->push_round(); }, [&] { return limit.push_round(); }});
    line("ps.push_4mb.sgd.tcp", rounds, "raw loopback socket + rule").ratio_at_least(0.8).print();
  }
  if (is_wanted("ps.pull_4mb.tcp")) {
    const auto rounds = in_turn({[&] { return ours->pull_round(); }, [&] { return limit.pull_round(); }});
    line("ps.pull_4mb.tcp", rounds, "raw loopback socket").ratio_at_least(0.8).print();
  }
}

struct StepCosts {
  Rounds cpu_s_per_gb, allocations, faults;
};

// A step: one push, one pull that contains it. Both processes count.
StepCosts step_costs(Snapshots snapshots) {
  constexpr int kBatches = 11, kSteps = 100;
  Ours ours(kElements, RuleKind::kSgd, SharedMemory::kRequire, snapshots);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ours->push();
      ours->pull();
    }
    ours->settle();
  };
  steps(5 * kSteps);  // until the messages have come round their rings: a page of these that is new would be a fault
  ours.server_usage();
  StepCosts costs;
  for (int i = 0; i < kBatches; ++i) {
    const Usage w0 = usage(), s0 = ours.server_usage();
    steps(kSteps);
    const Usage w1 = usage(), s1 = ours.server_usage();
    costs.cpu_s_per_gb.add((w1.cpu_s - w0.cpu_s + s1.cpu_s - s0.cpu_s) / (kSteps * 2.0 * kBytes / 1e9));
    costs.allocations.add(static_cast<double>(w1.allocations - w0.allocations + s1.allocations - s0.allocations) /
                          kSteps);
    costs.faults.add(static_cast<double>(w1.faults - w0.faults + s1.faults - s0.faults) / kSteps);
  }
  return costs;
}

void step_figures() {
  if (is_wanted("ps.push_pull.shm.cpu_s_per_gb")) {
    Line("ps.push_pull.shm.cpu_s_per_gb", step_costs(Snapshots::kUsual).cpu_s_per_gb, Better::kLess, "CPU s/GB")
        .at_most(0.35)
        .print();
  }
  if (is_any_wanted({"ps.steady_state.allocations", "ps.steady_state.page_faults"})) {
    const StepCosts costs = step_costs(Snapshots::kFirstOnly);
    Line::mean("ps.steady_state.allocations", costs.allocations, Better::kLess, "per step").at_most(0).print();
    Line::mean("ps.steady_state.page_faults", costs.faults, Better::kLess, "per step").at_most(0).print();
  }
}

// Blocking: from the call to the acknowledgement.
Rounds push_times_us(SharedMemory shared_memory) {
  Ours ours(1, RuleKind::kSgd, shared_memory);
  Rounds times;
  for (int i = 0; i < 11000; ++i) {
    const double begin = now_s();
    ours->push();
    ours->settle();
    if (i >= 1000) {
      times.add((now_s() - begin) * 1e6);
    }
  }
  return times;
}

void latency_figures() {
  if (is_wanted("ps.push_4b.shm.p50")) {
    Line("ps.push_4b.shm.p50", push_times_us(SharedMemory::kRequire), Better::kLess, "us").at_most(40).print();
  }
  if (is_wanted("ps.push_4b.tcp.p50")) {
    Line("ps.push_4b.tcp.p50", push_times_us(SharedMemory::kNever), Better::kLess, "us").print();
  }
}

}  // namespace

int main(int argc, char** argv) {
  take_filter(argc, argv);
  keep_freed_memory();  // the same malloc settings on both sides
  push_figure("sgd", RuleKind::kSgd);
  push_figure("adagrad", RuleKind::kAdagrad);
  if (is_any_wanted({"ps.pull_4mb.alone.shm", "ps.pull_4mb.shm"})) {
    pull_figure();
  }
  if (is_any_wanted({"ps.push_4mb.sgd.tcp", "ps.pull_4mb.tcp"})) {
    tcp_figures();
  }
  step_figures();
  latency_figures();
}
