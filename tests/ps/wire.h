#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/file.h"
#include "csrc/ps/connector.h"
#include "csrc/ps/server.h"
#include "tests/support/one_parameter.h"

// A parameter server over the machine's own TCP and shared memory: the server in a thread of its own.
namespace downpour::ps {

using transport::SharedMemory;

constexpr std::uint64_t kWireJob = 21;

inline Fd bind_anywhere() { return transport::bind_socket({"127.0.0.1", 0}, transport::Exposure::kLoopbackOnly); }

class ServerThread {
 public:
  // `socket`: a listening one that is kept for the next server, as the launcher keeps it.
  ServerThread(const Agreement& agreement, SharedMemory shared_memory, std::filesystem::path folder = {},
               int socket = -1)
      : files_(disk_files()),
        loop_(clock_),
        server_(loop_, agreement, 0, 1, kWireJob, snapshots(std::move(folder)), *files_),
        socket_(socket >= 0 ? Fd(::dup(socket)) : bind_anywhere()),
        address_(transport::local_address(socket_.get()).text()) {
    server_.restore_from_snapshot();
    listener_ =
        transport::listen_tcp(loop_, std::move(socket_), server_, shared_memory, transport::Exposure::kLoopbackOnly);
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
  // On the server's thread, and waits for it.
  void call(const std::function<void()>& what) {
    std::promise<void> done;
    loop_.post([&] {
      what();
      done.set_value();
    });
    done.get_future().wait();
  }
  const std::string& address() const { return address_; }
  const Shard& shard() const { return server_.shard(); }  // after end()

 private:
  static SnapshotOptions snapshots(std::filesystem::path folder) {
    SnapshotOptions options;
    options.folder = std::move(folder);
    options.replay_fraction = 1e9;
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
  WireWorker(const Agreement& agreement, const std::string& address, SharedMemory shared_memory, int rank,
             std::uint64_t replay_budget_bytes = 256u << 20, Duration call_deadline = std::chrono::seconds(60))
      : connector_(clock_, {{address}, 1, shared_memory, transport::Exposure::kLoopbackOnly}),
        client(agreement.schema, 1, connector_, options(rank, replay_budget_bytes, call_deadline)),
        values(static_cast<std::size_t>(agreement.schema.parameters[0].numel())) {}

  void initialise() { ps::initialise(client, values); }
  void push(const std::vector<float>& gradient) { ps::push(client, gradient); }
  void pull() { ps::pull(client, values); }

 private:
  static ClientOptions options(int rank, std::uint64_t replay_budget_bytes, Duration call_deadline) {
    ClientOptions options;
    options.job = kWireJob;
    options.rank = rank;
    options.incarnation = 1;
    options.replay_budget_bytes = replay_budget_bytes;
    options.fragment_bytes = 64 * 1024;
    options.call_deadline = call_deadline;
    return options;
  }
  SteadyClock clock_;
  NetworkConnector connector_;

 public:
  Client client;
  std::vector<float> values;
};

inline Agreement agreement_of(std::int64_t elements) {
  Agreement agreement;
  agreement.schema = {{{"w", {elements}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  return agreement;
}

inline std::filesystem::path fresh_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "downpour-wire-XXXXXX").string();
  DOWNPOUR_CHECK(::mkdtemp(pattern.data()) != nullptr, "mkdtemp failed");
  return pattern;
}

}  // namespace downpour::ps
