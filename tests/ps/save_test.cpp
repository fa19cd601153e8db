#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "tests/ps/cluster.h"

// What Client::save() promises: no crash of a server needs this worker any more.
namespace downpour::ps {
namespace {

Schema one_parameter() { return {{{"a", {40}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0}; }

class Save : public ::testing::Test {
 protected:
  Save() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Save() override { set_log_sink(nullptr); }

  // Snapshots take real time, the calls' deadlines virtual time.
  static ClientOptions patient() { return {.call_deadline = std::chrono::hours(1000)}; }
  float value_without_replay(Cluster& cluster) {
    for (int shard = 0; shard < cluster.shards(); ++shard) {
      cluster.restart(shard);
    }
    TestWorker other(cluster, 1);
    other.initialise();
    other.pull();
    return other.value();
  }
};

TEST_F(Save, PushesNeedNoReplayAfterwards) {
  Cluster cluster({.schema = one_parameter(), .shards = 2});
  {
    TestWorker worker(cluster, 0, 1, patient());
    worker.initialise();
    for (int i = 0; i < 4; ++i) {
      worker.push();
    }
    EXPECT_TRUE(worker.client.save());
    EXPECT_EQ(worker.client.unsettled(), 0);
    EXPECT_TRUE(worker.client.save()) << "again: nothing has changed";
  }
  EXPECT_EQ(value_without_replay(cluster), 4);
}

TEST_F(Save, WithoutItTheyDo) {
  Cluster cluster({.schema = one_parameter()});
  {
    TestWorker worker(cluster, 0, 1, patient());
    worker.initialise();
    cluster.settle_snapshots();
    worker.push();
    worker.client.settle();
  }
  EXPECT_EQ(value_without_replay(cluster), 0);
}

// Before the question, at it, and while the snapshot is being written.
TEST_F(Save, OutlivesTheServersDeathAtAnyMessage) {
  for (int fatal = 0; fatal < 30; ++fatal) {
    SCOPED_TRACE(fatal);
    Cluster cluster({.schema = one_parameter()});
    {
      TestWorker worker(cluster, 0, 1, patient());
      worker.initialise();
      cluster.settle_snapshots();
      worker.push();
      worker.push();
      const int begun = cluster.deliveries;
      cluster.script = [&, died = false](const auto& lanes) mutable {
        if (cluster.deliveries == begun + fatal && !std::exchange(died, true)) {
          cluster.restart();
        }
        return lanes.front();
      };
      EXPECT_TRUE(worker.client.save());
      cluster.script = nullptr;
    }
    EXPECT_EQ(value_without_replay(cluster), 2);
  }
}

class FullDisk final : public Files {
 public:
  std::unique_ptr<File> create(const std::filesystem::path& path) override {
    throw Error(concat("'", path.string(), "': no space left on device"));
  }
  std::vector<std::byte> read(const std::filesystem::path&, std::size_t) override { throw Error("nothing is there"); }
  bool exists(const std::filesystem::path&) override { return false; }
  void rename(const std::filesystem::path&, const std::filesystem::path&) override { throw Error("nothing is there"); }
  void remove(const std::filesystem::path&) override {}
  std::vector<std::string> list(const std::filesystem::path&) override { return {}; }
  void create_folders(const std::filesystem::path&) override {}
  void sync_folder(const std::filesystem::path&) override {}
};

TEST_F(Save, SaysThatTheDiskIsFullAndWaitsNoLonger) {
  FullDisk files;
  Cluster cluster({.schema = one_parameter()});
  cluster.crash();
  cluster.start(0, &files);
  TestWorker worker(cluster, 0, 1, patient());
  worker.initialise();
  worker.push();
  EXPECT_FALSE(worker.client.save());
  EXPECT_FALSE(worker.client.save()) << "asked again";
  cluster.crash();
}

// A save in the midst of training asks once: later connections ask for no snapshot of what comes after it.
TEST_F(Save, IsOverOnceThereIsASnapshot) {
  Cluster cluster({.schema = one_parameter()});
  TestWorker worker(cluster, 0, 1, patient());
  worker.initialise();
  worker.push();
  ASSERT_TRUE(worker.client.save());
  worker.push();
  worker.client.settle();
  cluster.restart();
  worker.pull();
  EXPECT_EQ(worker.value(), 2);
  cluster.deliver_all();
  cluster.restart();
  TestWorker other(cluster, 1);
  other.initialise();
  other.pull();
  EXPECT_EQ(other.value(), 1) << "the replayed push is in no snapshot";
}

TEST_F(Save, IsNothingWhereNoSnapshotsAreKept) {
  Cluster cluster({.schema = one_parameter(), .snapshots = false});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push();
  EXPECT_TRUE(worker.client.save());
}

}  // namespace
}  // namespace downpour::ps
