#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "csrc/base/file.h"
#include "csrc/ps/connector.h"
#include "csrc/ps/server.h"
#include "tests/ps/ledger.h"

// The same parameter server over the machine's own TCP and shared memory, server and workers in threads of their own.
namespace downpour::ps {
namespace {

using transport::SharedMemory;

constexpr std::uint64_t kJob = 21;

Fd bind() { return transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly); }

class ServerThread {
 public:
  // `socket`: a listening one that is kept for the next server, as the launcher keeps it.
  ServerThread(const Agreement& agreement, SharedMemory shared_memory, std::filesystem::path folder = {}, int socket = -1)
      : files_(disk_files()),
        loop_(clock_),
        server_(loop_, agreement, 0, 1, kJob, snapshots(std::move(folder)), *files_),
        socket_(socket >= 0 ? Fd(::dup(socket)) : bind()),
        address_(transport::local_address(socket_.get()).text()) {
    server_.restore_from_snapshot();
    listener_ = transport::listen_tcp(loop_, std::move(socket_), server_, shared_memory, transport::Exposure::kLoopbackOnly);
    thread_ = std::thread([this] {
      while (!ending_) {
        loop_.run_once(loop_.now() + std::chrono::seconds(10), server_.spin());
      }
    });
  }
  ~ServerThread() { end(); }
  void end() {
    ending_ = true;
    loop_.wake();
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  const std::string& address() const { return address_; }
  const Shard& shard() const { return server_.shard(); }   // after end()

 private:
  static SnapshotOptions snapshots(std::filesystem::path folder) {
    SnapshotOptions options;
    options.folder = std::move(folder);
    return options;
  }

  std::unique_ptr<Files> files_;
  SteadyClock clock_;
  transport::Loop loop_;
  ShardServer server_;
  Fd socket_;
  std::string address_;
  std::unique_ptr<transport::Listener> listener_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

class WireWorker {
 public:
  WireWorker(const Agreement& agreement, const std::string& address, SharedMemory shared_memory, int rank)
      : connector_(clock_, {{address}, 1, shared_memory, transport::Exposure::kLoopbackOnly}),
        client(agreement.schema, 1, connector_, options(rank)),
        values(static_cast<std::size_t>(agreement.schema.parameters[0].numel())) {}

  void initialise() {
    client.initialise([this](std::uint32_t) { return values.data(); }, std::vector<double>(1, 0.0));
  }
  void push(const std::vector<float>& gradient) {
    const Hyper hyper{.lr = -1};
    client.begin_push(0);
    client.add_gradient(0, gradient.data());
    client.end_push({&hyper, 1});
  }
  void pull() {
    client.begin_pull();
    client.finish_pull([this](const Slice&, std::int64_t begin, std::int64_t count, const void* source) {
      std::memcpy(values.data() + begin, source, static_cast<std::size_t>(count) * sizeof(float));
    });
  }

 private:
  static ClientOptions options(int rank) {
    ClientOptions options;
    options.job = kJob;
    options.rank = rank;
    options.incarnation = 1;
    options.fragment_bytes = 64 * 1024;
    return options;
  }
  SteadyClock clock_;
  NetworkConnector connector_;

 public:
  Client client;
  std::vector<float> values;
};

Agreement agreement_of(std::int64_t elements) {
  Agreement agreement;
  agreement.schema = {{{"w", {elements}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  return agreement;
}

std::filesystem::path fresh_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "downpour-wire-XXXXXX").string();
  EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
  return pattern;
}

class Wire : public testing::TestWithParam<SharedMemory> {};

INSTANTIATE_TEST_SUITE_P(Media, Wire, testing::Values(SharedMemory::kNever, SharedMemory::kRequire), [](const auto& instance) {
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
  const Fd socket = bind();
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

}  // namespace
}  // namespace downpour::ps
