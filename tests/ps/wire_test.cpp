#include "tests/ps/wire.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

// The same parameter server over the machine's own TCP and shared memory, server and workers in threads of their own.
namespace downpour::ps {
namespace {

class Wire : public testing::TestWithParam<SharedMemory> {};

INSTANTIATE_TEST_SUITE_P(Media, Wire, testing::Values(SharedMemory::kNever, SharedMemory::kRequire),
                         [](const auto& instance) {
                           return instance.param == SharedMemory::kNever ? "Tcp" : "SharedMemory";
                         });

TEST_P(Wire, OneWorkerPushesAndPulls) {
  const Agreement agreement = agreement_of(300'001);
  ServerThread server(agreement, GetParam());
  WireWorker worker(agreement, server.address(), GetParam(), 0);
  worker.initialise();
  EXPECT_EQ(worker.client.medium(), GetParam() == SharedMemory::kNever ? "tcp" : "shm");
  std::vector<float> gradient(worker.values.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 1000);
  }
  for (int i = 1; i <= 20; ++i) {
    worker.push(gradient);
    worker.pull();
    for (std::size_t at = 0; at < gradient.size(); at += 999) {
      ASSERT_EQ(worker.values[at], gradient[at] * static_cast<float>(i));
    }
  }
  EXPECT_EQ(worker.client.settle().applied, 20u);
}

// Every push adds 1 to one element of its own; pulls in between are of one version: their sum is the number of pushes in it.
TEST_P(Wire, LedgerOfTwoWorkers) {
  constexpr int kEach = 200;
  const Agreement agreement = agreement_of(4 * 16384);
  const std::filesystem::path folder = fresh_folder();
  ServerThread server(agreement, GetParam(), folder);
  const auto work = [&](int rank) {
    WireWorker worker(agreement, server.address(), GetParam(), rank);
    worker.initialise();
    std::vector<float> gradient(worker.values.size());
    for (int i = 0; i < kEach; ++i) {
      const auto at = static_cast<std::size_t>(64 * (rank * kEach + i));
      gradient[at] = 1;
      worker.push(gradient);
      gradient[at] = 0;
      if (i % 3 == 0) {
        worker.pull();
        ASSERT_EQ(worker.values[at], 1);
      }
    }
    EXPECT_EQ(worker.client.settle().applied, static_cast<std::uint64_t>(kEach));
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  server.end();
  const auto* values = reinterpret_cast<const float*>(server.shard().values().data());
  for (int push = 0; push < 2 * kEach; ++push) {
    EXPECT_EQ(values[64 * push], 1) << push;
  }
  std::filesystem::remove_all(folder);
}

TEST_P(Wire, AServerThatRestartsGetsWhatItsSnapshotLacks) {
  const Agreement agreement = agreement_of(5000);
  const std::filesystem::path folder = fresh_folder();
  const Fd socket = bind_anywhere();
  auto server = std::make_unique<ServerThread>(agreement, GetParam(), folder, socket.get());
  WireWorker worker(agreement, server->address(), GetParam(), 0);
  worker.initialise();
  for (int i = 0; i < 60; ++i) {
    worker.push(std::vector<float>(5000, 1));
    if (i % 20 == 10) {
      server.reset();
      server = std::make_unique<ServerThread>(agreement, GetParam(), folder, socket.get());
    }
  }
  worker.pull();
  EXPECT_EQ(worker.client.settle().applied, 60u);
  EXPECT_EQ(worker.values, std::vector<float>(5000, 60));
  EXPECT_EQ(worker.client.counters().lost, 0u);
  std::filesystem::remove_all(folder);
}

// The offer is made again while the slots hold all pushes; it must not lie where they do.
TEST_P(Wire, AServerThatNeverSavedGetsTheOfferAndAllPushesAgain) {
  const Agreement agreement = agreement_of(5000);
  const std::filesystem::path nowhere = "/proc/downpour";  // nobody can write there
  const Fd socket = bind_anywhere();
  auto server = std::make_unique<ServerThread>(agreement, GetParam(), nowhere, socket.get());
  WireWorker worker(agreement, server->address(), GetParam(), 0);
  worker.values.assign(5000, 100);
  worker.initialise();
  for (int i = 0; i < 60; ++i) {
    worker.push(std::vector<float>(5000, 1));
    if (i % 20 == 10) {
      server.reset();
      server = std::make_unique<ServerThread>(agreement, GetParam(), nowhere, socket.get());
    }
  }
  worker.pull();
  EXPECT_EQ(worker.client.settle().applied, 60u);
  EXPECT_EQ(worker.values, std::vector<float>(5000, 160));
  EXPECT_EQ(worker.client.counters().lost, 0u);
}

// A server that the test turns by hand.
class TurnedServer {
 public:
  TurnedServer(const Agreement& agreement, SharedMemory shared_memory, std::filesystem::path folder, Fd socket)
      : files_(disk_files()),
        server_(loop_, agreement, 0, 1, kWireJob, {std::move(folder), std::chrono::hours(1), 1e9, 1}, *files_) {
    server_.restore_from_snapshot();
    listener_ =
        transport::listen_tcp(loop_, std::move(socket), server_, shared_memory, transport::Exposure::kLoopbackOnly);
  }
  void turn() { loop_.run_once(loop_.now()); }

 private:
  std::unique_ptr<Files> files_;
  SteadyClock clock_;
  transport::Loop loop_{clock_};
  ShardServer server_;
  std::unique_ptr<transport::Listener> listener_;
};

// The worker sends again what the restored server lacks, and loses the connection before any of it was read: those pushes are
// decided and could give their slots away, but the server may still come to read them there.
TEST_P(Wire, AReplayOnAnEndedConnectionIsNotWrittenOver) {
  const Agreement agreement = agreement_of(64 * 1024);
  const std::filesystem::path folder = fresh_folder();
  const Fd kept = bind_anywhere();
  auto first = std::make_unique<ServerThread>(agreement, GetParam(), folder, kept.get());
  // A budget of one byte: as few slots as there can be.
  WireWorker worker(agreement, first->address(), GetParam(), 0, 1, std::chrono::seconds(3));
  const std::size_t elements = worker.values.size();
  worker.initialise();
  while (!std::filesystem::exists(folder / "shard-0-of-1.json")) {
    std::this_thread::yield();  // what comes next is in no snapshot
  }
  for (const float value : {1.0f, 2.0f, 4.0f, 8.0f}) {
    worker.push(std::vector<float>(elements, value));
  }
  EXPECT_EQ(worker.client.settle().applied, 4u);
  first.reset();

  TurnedServer second(agreement, GetParam(), folder, Fd(::dup(kept.get())));
  for (worker.client.look(); worker.client.counters().replayed == 0; worker.client.look()) {
    second.turn();
  }
  worker.client.set_incarnation(2);
  const std::vector<float> sixteen(elements, 16);
  EXPECT_THROW(worker.push(sixteen), TimeoutError) << "while the server stands still no slot may be had";
  std::atomic<bool> ends{false};
  std::thread turner([&] {
    while (!ends) {
      second.turn();
    }
  });
  worker.push(sixteen);
  worker.pull();
  ends = true;
  turner.join();
  EXPECT_EQ(worker.values, std::vector<float>(elements, 31));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace downpour::ps
