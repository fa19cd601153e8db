#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/ps/cluster.h"
#include "tests/ps/wire.h"
#include "tests/support/allocations.h"

// Once every buffer has been used, a step takes no memory: neither from the allocator nor, page by page, from the system.
namespace downpour::ps {
namespace {

constexpr int kWarmUp = 200;  // the rings, too, must have come round
constexpr int kSteps = 100;

struct Usage {
  std::uint64_t allocations = 0;
  std::int64_t page_faults = 0;
  Usage operator-(const Usage& before) const {
    return {allocations - before.allocations, page_faults - before.page_faults};
  }
};

// Of this thread.
Usage usage() {
  rusage self{};
  ::getrusage(RUSAGE_THREAD, &self);
  return {allocations(), self.ru_minflt};
}

Usage usage_of(ServerThread& server) {
  Usage found;
  server.call([&] { found = usage(); });
  return found;
}

TEST(SteadyState, AllocatesNothingOverInproc) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations cannot be counted under this sanitizer";
  }
  const Schema schema{{{"a", {5000}, Dtype::kFloat32, 0}, {"b", {70}, Dtype::kFloat64, 1}}, 2, RuleKind::kAdam, 0};
  Cluster cluster({.schema = schema, .shards = 2, .snapshots = false});
  TestWorker worker(cluster, 0, 1, {.fragment_bytes = 1024});
  worker.hypers.assign(2, Hyper{});
  worker.initialise();
  const std::vector<float> a(5000, 1);
  const std::vector<double> b(70, 1);
  const Client::Adopt adopt = [](const Slice&, std::int64_t, std::int64_t, const void*) {};
  const auto step = [&] {
    worker.client.begin_push(0);
    worker.client.add_gradient(1, b.data());
    worker.client.add_gradient(0, a.data());
    worker.client.end_push(worker.hypers);
    worker.client.begin_pull();
    cluster.network.deliver_all();  // nothing is left to wait for
    worker.client.finish_pull(adopt);
    worker.client.settle();
  };
  for (int i = 0; i < kWarmUp; ++i) {
    step();
  }
  const std::uint64_t before = allocations();
  for (int i = 0; i < kSteps; ++i) {
    step();
  }
  EXPECT_EQ(allocations() - before, 0u);
}

struct Case {
  SharedMemory shared_memory;
  bool snapshots;
};

class SteadyStateOverWires : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Media, SteadyStateOverWires,
                         testing::Values(Case{SharedMemory::kRequire, false}, Case{SharedMemory::kRequire, true},
                                         Case{SharedMemory::kNever, false}, Case{SharedMemory::kNever, true}),
                         [](const auto& instance) {
                           return concat(instance.param.shared_memory == SharedMemory::kNever ? "Tcp" : "SharedMemory",
                                         instance.param.snapshots ? "WithReplay" : "");
                         });

TEST_P(SteadyStateOverWires, TakesNoMemory) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations cannot be counted under this sanitizer";
  }
  const Agreement agreement = agreement_of(1 << 18);
  const std::filesystem::path folder = GetParam().snapshots ? fresh_folder() : std::filesystem::path();
  ServerThread server(agreement, GetParam().shared_memory, folder);
  WireWorker worker(agreement, server.address(), GetParam().shared_memory, 0, 16u << 20);  // 16 slots
  worker.initialise();
  const std::vector<float> gradient(worker.values.size(), 1);
  const auto step = [&] {
    worker.push(gradient);
    worker.pull();
    worker.client.settle();
  };
  for (int i = 0; i < kWarmUp; ++i) {
    step();
  }
  const Usage server_before = usage_of(server);
  const Usage worker_before = usage();
  for (int i = 0; i < kSteps; ++i) {
    step();
  }
  const Usage of_worker = usage() - worker_before;
  const Usage of_server = usage_of(server) - server_before;
  EXPECT_EQ(of_worker.allocations, 0u);
  EXPECT_LE(of_server.allocations, 8u);  // of the question itself
  // Now and then the system takes a page away to look whether it is used.
  EXPECT_LE(of_worker.page_faults, kSteps / 10);
  EXPECT_LE(of_server.page_faults, kSteps / 10);
  if (GetParam().snapshots) {
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace downpour::ps
