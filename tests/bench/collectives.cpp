// Collective calls beside Gloo: both are backends of the same LibTorch, take turns in the same processes (A B A B), and end each
// round with a barrier of their own. Ranks are processes with one thread for tensors each.
#include <sys/resource.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backends/process_group_downpour.h"
#include "backends/store_bulletin.h"
#include "csrc/base/malloc_settings.h"
#include "tests/bench/bench.h"
#include "tests/bench/ranks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace downpour;
using namespace downpour::bench;
using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using transport::SharedMemory;

constexpr int kRounds = 31;
constexpr int kWarm = 5;
constexpr std::int64_t kMega = 1 << 20;

// ---- the backends ------------------------------------------------------------------------------------------------------------

BackendPtr make_gloo(const StorePtr& store, int rank, int world) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->timeout = std::chrono::minutes(1);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options);
}

// What one rank does in one round, over a backend; it returns when the rank's part is done.
using Operation = std::function<void(c10d::Backend& backend)>;

// Both sides' milliseconds for the same operation, in turn.
struct Times {
  Rounds ours, theirs;
};

double milliseconds_of(c10d::Backend& backend, const Operation& operation, int repeats) {
  backend.barrier()->wait();
  const double begin = now_s();
  for (int i = 0; i < repeats; ++i) {
    operation(backend);
  }
  backend.barrier()->wait();
  return (now_s() - begin) * 1e3 / repeats;
}

Times compare(c10d::Backend& ours, const Operation& operation, c10d::Backend& theirs, const Operation& their_operation,
              int repeats = 1) {
  Times times;
  for (int round = -kWarm; round < kRounds; ++round) {
    const double mine = milliseconds_of(ours, operation, repeats);
    const double other = milliseconds_of(theirs, their_operation, repeats);
    if (round >= 0) {
      times.ours.add(mine);
      times.theirs.add(other);
    }
  }
  return times;
}

// value: how many times as fast as Gloo.
void print(const Rank& self, const std::string& name, const Times& times, double least_ratio) {
  if (self.rank != 0) {
    return;
  }
  Line::quotient(name, times.theirs, times.ours, Better::kLess)
      .add("ms", times.ours.median())
      .add("best_ms", times.ours.best(Better::kLess))
      .add("peer", "gloo")
      .add("peer_ms", times.theirs.median())
      .add("peer_best_ms", times.theirs.best(Better::kLess))
      .at_least(least_ratio)
      .print();
}

// ---- the operations ------------------------------------------------------------------------------------------------------------

Operation all_reduce(const at::Tensor& tensor) {
  return [tensor](c10d::Backend& backend) {
    Tensors tensors{tensor};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    backend.allreduce(tensors, options)->wait();
  };
}

Operation broadcast(const at::Tensor& tensor) {
  return [tensor](c10d::Backend& backend) {
    Tensors tensors{tensor};
    c10d::BroadcastOptions options;
    options.asyncOp = false;
    backend.broadcast(tensors, options)->wait();
  };
}

Operation all_gather(const at::Tensor& mine, const Tensors& all) {
  return [mine, all](c10d::Backend& backend) {
    Tensors inputs{mine};
    std::vector<Tensors> outputs{all};
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    backend.allgather(outputs, inputs, options)->wait();
  };
}

Operation reduce_scatter(const at::Tensor& part, const at::Tensor& whole) {
  return [part, whole](c10d::Backend& backend) {
    at::Tensor output = part, input = whole;
    c10d::ReduceScatterOptions options;
    options.asyncOp = false;
    backend._reduce_scatter_base(output, input, options)->wait();
  };
}

Operation all_to_all(const at::Tensor& to, const at::Tensor& from) {
  return [to, from](c10d::Backend& backend) {
    at::Tensor output = to, input = from;
    std::vector<std::int64_t> even;
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    backend.alltoall_base(output, input, even, even, options)->wait();
  };
}

// There and back between ranks 0 and 1.
Operation send_and_receive(const at::Tensor& tensor) {
  return [tensor](c10d::Backend& backend) {
    Tensors tensors{tensor};
    const int other = 1 - backend.getRank();
    if (backend.getRank() == 0) {
      backend.send(tensors, other, 0)->wait();
      backend.recv(tensors, other, 0)->wait();
    } else {
      backend.recv(tensors, other, 0)->wait();
      backend.send(tensors, other, 0)->wait();
    }
  };
}

// ---- what is measured ------------------------------------------------------------------------------------------------------------

at::Tensor floats(std::int64_t bytes) { return at::ones({bytes / 4}); }

void measure_small(const Rank& self, c10d::Backend& ours, c10d::Backend& gloo) {
  const std::string name = "allreduce.4b.2ranks.shm.p50";
  if (!is_wanted(name)) {
    return;
  }
  const auto once = all_reduce(floats(4));
  Rounds mine, theirs;
  for (int i = -200; i < 2000; ++i) {
    for (auto [backend, rounds] : {std::pair(&ours, &mine), std::pair(&gloo, &theirs)}) {
      const double begin = now_s();
      once(*backend);
      if (i >= 0) {
        rounds->add((now_s() - begin) * 1e6);
      }
    }
  }
  if (self.rank == 0) {
    Line(name, mine, Better::kLess, "us").add("peer", "gloo").add("peer_value", theirs.median()).at_most(40).print();
    Line::quotient(name + ".ratio", theirs, mine, Better::kLess).at_least(4).print();
  }
}

void measure_pair(const Rank& self) {
  const auto ours = self.group("ours", SharedMemory::kRequire);
  const auto tcp = self.group("tcp", SharedMemory::kNever);
  const auto gloo = make_gloo(self.place("gloo"), self.rank, self.world);
  const auto big = all_reduce(floats(40 * kMega));

  if (is_wanted("allreduce.40mb.2ranks.zero_copy")) {
    const at::Tensor shared = ours->allocate({10 * kMega}, at::kFloat).fill_(1);
    const Times times = compare(*ours, all_reduce(shared), *gloo, big);
    print(self, "allreduce.40mb.2ranks.zero_copy", times, 5);
    if (self.rank == 0) {
      Line("allreduce.40mb.2ranks.zero_copy.ms", times.ours, Better::kLess, "ms").at_most(8).print();
    }
  }
  if (is_wanted("allreduce.40mb.2ranks.shm")) {
    print(self, "allreduce.40mb.2ranks.shm", compare(*ours, big, *gloo, big), 1.8);
  }
  if (is_wanted("allreduce.40mb.2ranks.tcp")) {
    print(self, "allreduce.40mb.2ranks.tcp", compare(*tcp, big, *gloo, big), 1.5);
  }
  if (is_wanted("allreduce.256kb.2ranks.shm")) {
    const auto once = all_reduce(floats(kMega / 4));
    print(self, "allreduce.256kb.2ranks.shm", compare(*ours, once, *gloo, once, 20), 3);
  }
  measure_small(self, *ours, *gloo);

  const at::Tensor four = floats(4 * kMega), half = floats(2 * kMega), other = floats(4 * kMega);
  const std::vector<std::pair<std::string, Operation>> operations{
      {"broadcast.4mb", broadcast(four)},
      {"allgather.4mb", all_gather(half, {floats(2 * kMega), floats(2 * kMega)})},
      {"reduce_scatter.4mb", reduce_scatter(half, four)},
      {"alltoall.4mb", all_to_all(other, four)},
      {"sendrecv.4mb", send_and_receive(four)},
  };
  for (const auto& [name, operation] : operations) {
    if (is_wanted(name)) {
      print(self, name, compare(*ours, operation, *gloo, operation, 4), 3);
    }
  }
}

void measure_four(const Rank& self) {
  if (!is_wanted("allreduce.4mb.4ranks.shm")) {
    return;
  }
  const auto ours = self.group("ours", SharedMemory::kRequire);
  const auto gloo = make_gloo(self.place("gloo"), self.rank, self.world);
  const auto once = all_reduce(floats(4 * kMega));
  print(self, "allreduce.4mb.4ranks.shm", compare(*ours, once, *gloo, once, 4), 3);
}

// A call that is kept and made again: nothing is allocated, no page is new.
void measure_steady_state(const Rank& self) {
  if (!is_any_wanted({"collectives.steady_state.allocations", "collectives.steady_state.page_faults"})) {
    return;
  }
  backends::StoreBulletin bulletin(self.place("core"));
  collective::GroupOptions options;
  options.rank = self.rank;
  options.world = self.world;
  const auto group = collective::Group::form(bulletin, options);
  std::vector<float> values(kMega, 1.f);
  collective::Call call;
  call.shape = {collective::Op::kAllReduce, collective::ElementType::kFloat32, collective::ReduceOp::kSum, 0, kMega};
  call.outputs = {std::as_writable_bytes(std::span(values))};
  Rounds allocations, faults;
  for (int round = -kWarm; round < kRounds; ++round) {
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    const std::uint64_t count = g_allocations;
    group->run(call, std::chrono::minutes(1));
    const std::uint64_t made = g_allocations - count;
    ::getrusage(RUSAGE_SELF, &after);
    if (round >= 0) {
      allocations.add(static_cast<double>(made));
      faults.add(static_cast<double>(after.ru_minflt - before.ru_minflt));
    }
  }
  if (self.rank == 0) {
    Line::mean("collectives.steady_state.allocations", allocations, Better::kLess, "a call").at_most(0).print();
    Line::mean("collectives.steady_state.page_faults", faults, Better::kLess, "a call").at_most(0).print();
  }
}

}  // namespace

int main(int argc, char** argv) {
  take_filter(argc, argv);
  keep_freed_memory();
  as_ranks(2, [](const Rank& self) {
    measure_pair(self);
    measure_steady_state(self);
  });
  as_ranks(4, measure_four);
}
