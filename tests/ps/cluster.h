#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/random.h"
#include "csrc/ps/client.h"
#include "csrc/ps/server.h"
#include "csrc/transport/inproc.h"
#include "tests/ps/fault_files.h"

namespace downpour::ps {

struct ClusterOptions {
  Schema schema;
  int shards = 1;
  std::int64_t max_staleness = -1;
  bool snapshots = true;  // taken when a test says so, and once after the initial values
  SnapshotOptions when{{}, std::chrono::hours(1000), 1e9, 1};
};

// Shards and their network in one thread. Messages are delivered while a client waits, one at a time, in an order that the
// test decides; when nothing can be delivered, time passes until the client's deadline.
class Cluster {
 public:
  static constexpr std::uint64_t kJob = 7;

  explicit Cluster(ClusterOptions options) : options_(std::move(options)) {
    agreement.schema = options_.schema;
    agreement.max_staleness = options_.max_staleness;
    for (int shard = 0; shard < options_.shards; ++shard) {
      disks_.push_back(std::make_unique<MemoryFiles>());
      servers_.push_back(nullptr);
      listeners_.push_back(nullptr);
      start(shard);
    }
  }
  ~Cluster() {
    for (int shard = 0; shard < shards(); ++shard) {
      crash(shard);
    }
  }

  int shards() const { return options_.shards; }
  ShardServer& server(int shard = 0) { return *servers_[static_cast<std::size_t>(shard)]; }
  MemoryFiles& disk(int shard = 0) { return *disks_[static_cast<std::size_t>(shard)]; }
  bool is_up(int shard) const { return servers_[static_cast<std::size_t>(shard)] != nullptr; }

  void start(int shard, Files* files = nullptr) {
    const auto at = static_cast<std::size_t>(shard);
    SnapshotOptions when = options_.when;
    when.folder = options_.snapshots ? "/run" : "";
    servers_[at] = std::make_unique<ShardServer>(loop, agreement, shard, shards(), kJob, when,
                                                 files != nullptr ? *files : *disks_[at]);
    servers_[at]->restore_from_snapshot();
    restored_[shard] = server(shard).shard().initialised();
    doormen_[shard] = std::make_unique<Doorman>(*this, *servers_[at]);
    listeners_[at] = network.listen(address(shard), *doormen_[shard]);
  }
  // The process is gone: what it had sent is not delivered any more.
  void crash(int shard = 0) {
    const auto at = static_cast<std::size_t>(shard);
    listeners_[at].reset();
    for (int link = 0; link < network.links(); ++link) {
      if (servers_[at] != nullptr && shard_of_link_[link] == shard) {
        network.cut(link);
      }
    }
    servers_[at].reset();
  }
  void restart(int shard = 0) {
    crash(shard);
    start(shard);
  }
  void snapshot(int shard = 0) {
    settle_snapshots(shard);
    const std::uint64_t before = server(shard).snapshots_written();
    server(shard).snapshot_now();
    loop.run_until([&] { return server(shard).snapshots_written() > before; }, clock.now() + std::chrono::seconds(20));
  }
  // Until the snapshot that follows the initial values is there.
  void settle_snapshots(int shard = 0) {
    if (options_.snapshots && server(shard).shard().initialised() && !restored_[shard]) {
      loop.run_until([&] { return server(shard).snapshots_written() > 0 || !server(shard).snapshot_error().empty(); },
                     clock.now() + std::chrono::seconds(20));
    }
  }

  // ---- the network -----------------------------------------------------------------------------------------------------
  // Links in the order in which they were made; direction 0 is towards the shard, 1 towards the worker.
  int newest_link() const { return network.links() - 1; }
  void hold(int link, int direction) { held_.insert({link, direction}); }
  void release(int link, int direction) { held_.erase({link, direction}); }
  void release_all() { held_.clear(); }

  // Lanes with something to deliver, that are not held.
  std::vector<std::pair<int, int>> lanes() const {
    std::vector<std::pair<int, int>> found;
    for (int link = 0; link < network.links(); ++link) {
      for (const int direction : {0, 1}) {
        if (network.waiting(link, direction) > 0 && !held_.contains({link, direction})) {
          found.emplace_back(link, direction);
        }
      }
    }
    return found;
  }
  // Called before each delivery: may cut, crash, choose. Returns the lane to deliver from.
  using Script = std::function<std::pair<int, int>(const std::vector<std::pair<int, int>>& lanes)>;
  Script script;
  std::function<void()> when_asked;  // before a shard admits anybody

  bool deliver_one() {
    loop.run_once(clock.now());
    const auto choice = lanes();
    if (choice.empty()) {
      return false;
    }
    const auto [link, direction] = script ? script(choice) : choice.front();
    ++deliveries;
    network.deliver(link, direction);  // unless the script has cut it
    return true;
  }
  void deliver_all() {
    while (deliver_one()) {
    }
  }
  int deliveries = 0;

  ManualClock clock;
  transport::Loop loop{clock};
  transport::InprocNetwork network;
  Agreement agreement;

  std::string address(int shard) const { return "shard-" + std::to_string(shard); }
  void note_link(int link, int shard) { shard_of_link_[link] = shard; }

 private:
  struct Doorman final : transport::Acceptor {
    Doorman(Cluster& its_cluster, ShardServer& its_server) : cluster(its_cluster), server(its_server) {}
    transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override {
      if (cluster.when_asked) {
        cluster.when_asked();
      }
      return server.admit(hello, medium);
    }
    void on_connection(std::unique_ptr<transport::Connection> connection) override {
      server.on_connection(std::move(connection));
    }
    Cluster& cluster;
    ShardServer& server;
  };

  ClusterOptions options_;
  std::vector<std::unique_ptr<MemoryFiles>> disks_;
  std::vector<std::unique_ptr<ShardServer>> servers_;
  std::map<int, std::unique_ptr<Doorman>> doormen_;  // by shard
  std::vector<std::unique_ptr<transport::Listener>> listeners_;
  std::map<int, int> shard_of_link_;
  std::map<int, bool> restored_;  // by shard: this life began with a snapshot
  std::set<std::pair<int, int>> held_;
};

class ClusterConnector final : public Connector {
 public:
  explicit ClusterConnector(Cluster& cluster) : cluster_(cluster) {}
  std::unique_ptr<transport::Connection> connect(int shard, const transport::Hello& hello,
                                                 transport::Receiver& receiver,
                                                 const transport::ConnectOptions& options) override {
    auto connection = cluster_.network.connect(cluster_.address(shard), hello, receiver, options);
    cluster_.note_link(cluster_.newest_link(), shard);
    return connection;
  }
  bool run_once(TimePoint deadline, Duration spin) override {
    (void)spin;
    if (deadline <= cluster_.clock.now()) {
      cluster_.loop.run_once(cluster_.clock.now());
      return false;  // a look: whoever only looks leaves the deliveries to the test
    }
    if (cluster_.deliver_one()) {
      return true;
    }
    cluster_.clock.advance(std::min<Duration>(deadline - cluster_.clock.now(), std::chrono::seconds(1)));
    return false;
  }
  TimePoint now() const override { return cluster_.clock.now(); }

 private:
  Cluster& cluster_;
};

// A client with parameters of its own.
class TestWorker {
 public:
  TestWorker(Cluster& cluster, int rank, std::uint32_t incarnation = 1, ClientOptions options = {})
      : connector_(cluster),
        client(cluster.agreement.schema, cluster.shards(), connector_, with(options, rank, incarnation)) {
    for (const ParameterSpec& parameter : cluster.agreement.schema.parameters) {
      values.emplace_back(static_cast<std::size_t>(parameter.numel()) *
                          static_cast<std::size_t>(size_bytes(parameter.dtype)));
    }
    hypers.assign(cluster.agreement.schema.groups, Hyper{.lr = -1});
  }

  static ClientOptions with(ClientOptions options, int rank, std::uint32_t incarnation) {
    options.job = Cluster::kJob;
    options.rank = rank;
    options.incarnation = incarnation;
    return options;
  }

  void initialise(double accumulator = 0) {
    client.initialise([this](std::uint32_t parameter) { return values[parameter].data(); },
                      std::vector<double>(hypers.size(), accumulator));
  }
  // Every element of every parameter that `chosen` takes.
  void begin_and_add(float value, const std::function<bool(std::uint32_t)>& chosen = nullptr, std::uint64_t lease = 0) {
    client.begin_push(lease);
    for (std::uint32_t parameter = 0; parameter < values.size(); ++parameter) {
      if (!chosen || chosen(parameter)) {
        const std::vector<float> gradient(values[parameter].size() / sizeof(float), value);
        client.add_gradient(parameter, gradient.data());
      }
    }
  }
  void push(float value = 1, const std::function<bool(std::uint32_t)>& chosen = nullptr, std::uint64_t lease = 0) {
    begin_and_add(value, chosen, lease);
    client.end_push(hypers);
  }
  void pull() {
    client.begin_pull();
    finish_pull();
  }
  void finish_pull() {
    client.finish_pull([this](const Slice& slice, std::int64_t begin, std::int64_t count, const void* source) {
      const auto element = static_cast<std::size_t>(size_bytes(slice.dtype));
      std::memcpy(values[slice.parameter].data() + static_cast<std::size_t>(begin) * element, source,
                  static_cast<std::size_t>(count) * element);
    });
  }
  std::vector<float> floats(std::uint32_t parameter) const {
    std::vector<float> found(values[parameter].size() / sizeof(float));
    std::memcpy(found.data(), values[parameter].data(), values[parameter].size());
    return found;
  }
  // All elements, which must be equal.
  float value(std::uint32_t parameter = 0) const {
    const auto all = floats(parameter);
    return std::equal(all.begin() + 1, all.end(), all.begin()) ? all.at(0) : std::numeric_limits<float>::quiet_NaN();
  }

  std::vector<std::vector<std::byte>> values;  // by parameter
  std::vector<Hyper> hypers;

 private:
  ClusterConnector connector_;

 public:
  Client client;
};

}  // namespace downpour::ps
