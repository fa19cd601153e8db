#include <gtest/gtest.h>

#include <optional>

#include "csrc/base/log.h"
#include "tests/ps/cluster.h"
#include "tests/ps/ledger.h"

// A push is applied exactly once, wherever a connection breaks and whenever a server dies; what could not be replayed is
// declared, no more and no less.
namespace downpour::ps {
namespace {

class Quiet {
 public:
  Quiet() {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  ~Quiet() { set_log_sink(nullptr); }
};

constexpr int kPushes = 4;

Schema two_parameters() {
  return {{{"a", {40}, Dtype::kFloat32, 0}, {"b", {3}, Dtype::kFloat32, 1}}, 2, RuleKind::kSgd, 0};
}

// The whole life of a worker: each push adds 1 to every element.
struct Life {
  explicit Life(int shards = 1)
      : cluster({.schema = two_parameters(), .shards = shards}), worker(cluster, 0, 1, {.fragment_bytes = 64}) {}

  void run() {
    worker.initialise();
    for (int i = 0; i < kPushes; ++i) {
      worker.push();
      if (i % 2 == 1) {
        worker.pull();
        EXPECT_EQ(worker.value(0), i + 1);
        EXPECT_EQ(worker.value(1), i + 1);
      }
    }
    const StepReport report = worker.client.settle();
    EXPECT_EQ(report.applied, static_cast<std::uint64_t>(kPushes * cluster.shards()));
    EXPECT_EQ(worker.client.counters().lost, 0u);
    worker.pull();
    EXPECT_EQ(worker.value(0), kPushes);
    EXPECT_EQ(worker.value(1), kPushes);
    for (int shard = 0; shard < cluster.shards(); ++shard) {
      EXPECT_EQ(cluster.server(shard).shard().version().version, static_cast<std::uint64_t>(kPushes));
      EXPECT_EQ(cluster.server(shard).shard().next_sequence(0), static_cast<std::uint64_t>(kPushes));
    }
  }

  Cluster cluster;
  TestWorker worker;
};

int deliveries_of_a_life(int shards) {
  Life life(shards);
  life.run();
  return life.cluster.deliveries;
}

TEST(ExactlyOnce, WhenTheConnectionIsCutAtAnyMessage) {
  const Quiet quiet;
  for (const int shards : {1, 2}) {
    const int deliveries = deliveries_of_a_life(shards);
    ASSERT_GT(deliveries, 30);
    for (int cut = 0; cut < deliveries; ++cut) {
      SCOPED_TRACE(concat("cut before delivery ", cut, " of ", deliveries));
      Life life(shards);
      life.cluster.script = [&](const auto& lanes) {
        if (life.cluster.deliveries == cut) {
          life.cluster.network.cut(lanes.front().first);
        }
        return lanes.front();
      };
      life.run();
    }
  }
}

TEST(ExactlyOnce, WhenTheConnectionIsCutTwice) {
  const Quiet quiet;
  const int deliveries = deliveries_of_a_life(1);
  for (int first = 0; first < deliveries; first += 3) {
    for (int second = first + 1; second < deliveries; second += 2) {
      SCOPED_TRACE(concat("cut before deliveries ", first, " and ", second));
      Life life;
      life.cluster.script = [&](const auto& lanes) {
        if (life.cluster.deliveries == first || life.cluster.deliveries == second) {
          life.cluster.network.cut(lanes.front().first);
        }
        return lanes.front();
      };
      life.run();
    }
  }
}

TEST(ExactlyOnce, WhenTheConnectionIsCutAtAnyByte) {
  const Quiet quiet;
  for (const int direction : {0, 1}) {
    for (std::uint64_t bytes = 1; bytes < 4000; bytes += 7) {
      SCOPED_TRACE(concat("cut after ", bytes, " bytes of direction ", direction));
      Life life;
      bool armed = false;
      life.cluster.script = [&](const auto& lanes) {
        if (!std::exchange(armed, true)) {
          life.cluster.network.cut_after(0, direction, bytes);
        }
        return lanes.front();
      };
      life.run();
    }
  }
}

TEST(ExactlyOnce, WhenTheServerRestartsFromItsSnapshotAtAnyMessage) {
  const Quiet quiet;
  const int deliveries = deliveries_of_a_life(1);
  for (int crash = 0; crash < deliveries; ++crash) {
    for (const int snapshot : {-1, crash / 2, crash - 1}) {
      SCOPED_TRACE(concat("snapshot at ", snapshot, ", crash before delivery ", crash, " of ", deliveries));
      Life life;
      life.cluster.script = [&](const auto& lanes) {
        if (life.cluster.deliveries == snapshot && life.cluster.server().shard().initialised()) {
          life.cluster.snapshot();
        }
        if (life.cluster.deliveries == crash) {
          life.cluster.settle_snapshots();
          life.cluster.restart();
        }
        return lanes.front();
      };
      life.run();
    }
  }
}

TEST(ExactlyOnce, AServerThatLostAllGetsTheInitialValuesAndAllPushesAgain) {
  Cluster cluster({.schema = two_parameters(), .snapshots = false});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push();  // never seen
  cluster.restart();
  worker.pull();
  EXPECT_EQ(worker.value(), 1);
}

TEST(ExactlyOnce, ReplayedPushesKeepTheirVerdicts) {
  const Quiet quiet;
  Cluster cluster({.schema = two_parameters(), .max_staleness = 0});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  cluster.settle_snapshots();
  a.pull();
  b.pull();
  b.push(1);
  b.client.settle();
  a.push(10);              // stale
  a.client.begin_push(0);  // refused would need a pull first
  a.client.abandon_push();
  EXPECT_EQ(a.client.settle().stale, 1u);
  a.pull();
  a.push(100);  // applied
  EXPECT_EQ(a.client.settle().applied, 1u);
  cluster.restart();  // from version 0
  a.pull();           // a's first, before b's: now the stale one would not be stale
  b.pull();
  EXPECT_EQ(b.value(), 101);
  EXPECT_EQ(cluster.server().shard().counters().replayed, 3u);
  EXPECT_EQ(cluster.server().shard().verdicts().find(0, 0), Verdict::kStale);
  EXPECT_EQ(a.client.settle().stale, 0u);  // what was reported once is not reported again
}

TEST(ExactlyOnce, PushesNeverAcknowledgedAreExemptFromTheStalenessBound) {
  const Quiet quiet;
  Cluster cluster({.schema = two_parameters(), .max_staleness = 0});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  cluster.settle_snapshots();
  a.pull();
  b.pull();
  cluster.hold(cluster.newest_link() - 1, 0);
  a.push(10);  // under way
  b.push(1);
  b.client.settle();
  cluster.restart();
  cluster.release_all();
  b.pull();  // b's is replayed first
  a.pull();
  EXPECT_EQ(a.client.settle().applied, 1u);
  EXPECT_EQ(a.value(), 11);
}

TEST(ExactlyOnce, BeyondTheBudgetTheDeclaredLossIsTheRealOne) {
  const Quiet quiet;
  // Four slots are the least a worker has.
  Cluster cluster({.schema = two_parameters()});
  TestWorker worker(cluster, 0, 1, {.replay_budget_bytes = 1});
  worker.initialise();
  cluster.settle_snapshots();
  for (int i = 0; i < 3; ++i) {
    worker.push();
  }
  worker.client.settle();
  cluster.snapshot();
  for (int i = 0; i < 7; ++i) {
    worker.push();
  }
  worker.client.settle();
  cluster.restart();
  worker.pull();
  EXPECT_EQ(worker.value(), 3 + 4);  // of seven, the last four are kept
  EXPECT_EQ(worker.client.counters().lost, 3u);
  EXPECT_EQ(cluster.server().shard().counters().lost, 3u);
  EXPECT_EQ(worker.client.counters().replayed, 4u);
  worker.push();
  worker.pull();
  EXPECT_EQ(worker.value(), 8);
}

TEST(ExactlyOnce, ADeadWorkersPushesAreDeclaredLostWhenTheServerDiesToo) {
  const Quiet quiet;
  Cluster cluster({.schema = two_parameters()});
  {
    TestWorker worker(cluster, 0);
    worker.initialise();
    cluster.settle_snapshots();
    worker.push();
    worker.push();
    worker.client.settle();
  }
  TestWorker again(cluster, 0, 2);
  again.initialise();
  again.push();
  again.client.settle();
  cluster.restart();
  again.pull();
  EXPECT_EQ(again.value(), 1);
  EXPECT_EQ(again.client.counters().lost, 2u);
  EXPECT_EQ(cluster.server().shard().counters().lost, 2u);
}

TEST(ExactlyOnce, SnapshotsFreeTheSlots) {
  Cluster cluster({.schema = two_parameters()});
  TestWorker worker(cluster, 0, 1, {.replay_budget_bytes = 1});
  worker.initialise();
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i) {
      worker.push();
    }
    worker.client.settle();
    cluster.snapshot();
  }
  cluster.restart();
  worker.pull();
  EXPECT_EQ(worker.value(), 20);
  EXPECT_EQ(worker.client.counters().lost, 0u);
  EXPECT_EQ(worker.client.counters().replayed, 0u);
}

TEST(ExactlyOnce, ReplayGoesOnWhenItIsCutToo) {
  const Quiet quiet;
  for (int cut = 0; cut < 40; ++cut) {
    SCOPED_TRACE(cut);
    Life life;
    life.worker.initialise();
    life.cluster.settle_snapshots();
    for (int i = 0; i < 10; ++i) {
      life.worker.push();
    }
    life.worker.client.settle();
    life.cluster.restart();
    const int from = life.cluster.deliveries;
    life.cluster.script = [&](const auto& lanes) {
      if (life.cluster.deliveries == from + cut) {
        life.cluster.network.cut(lanes.front().first);
      }
      return lanes.front();
    };
    life.worker.pull();
    EXPECT_EQ(life.worker.value(), 10);
    EXPECT_EQ(life.worker.client.counters().lost, 0u);
  }
}

// ---- the ledger (design: prove it under anything) --------------------------------------------------------------------

// Push i of worker w adds 1 at index w * kEach + i of every parameter: afterwards 0 is lost, 2 is doubled.
class LedgerRun {
 public:
  static constexpr int kWorkers = 3;
  static constexpr int kEach = 32;
  static constexpr int kParameters = 4;

  LedgerRun(std::uint64_t seed, bool crashes)
      : random_(seed),
        crashes_(crashes),
        cluster_({.schema = schema(), .shards = 1 + static_cast<int>(random_.below(3))}) {
    const std::uint64_t fragment_bytes = 64u << random_.below(4);
    const std::uint64_t budget = random_.below(2) == 0 ? 1 : 1u << 20;
    for (int rank = 0; rank < kWorkers; ++rank) {
      options_ = {.replay_budget_bytes = budget, .fragment_bytes = fragment_bytes};
      workers_.push_back(std::make_unique<TestWorker>(cluster_, rank, 1, options_));
      incarnations_.push_back(1);
      pushed_.push_back(0);
    }
  }

  void run() {
    for (const auto& worker : workers_) {
      worker->initialise();
      for (int shard = 0; shard < cluster_.shards(); ++shard) {
        cluster_.settle_snapshots(shard);
      }
    }
    cluster_.script = [this](const auto& lanes) { return disturb(lanes); };
    while (std::any_of(pushed_.begin(), pushed_.end(), [](int pushed) { return pushed < kEach; })) {
      act(random_.below(kWorkers));
    }
    cluster_.script = nullptr;
    check();
  }

 private:
  static Schema schema() {
    Schema schema;
    for (int p = 0; p < kParameters; ++p) {
      schema.parameters.push_back({"p" + std::to_string(p), {kWorkers * kEach}, Dtype::kFloat32, 0});
    }
    schema.rule = RuleKind::kSgd;
    return schema;
  }

  std::pair<int, int> disturb(const std::vector<std::pair<int, int>>& lanes) {
    const auto lane = lanes[random_.below(lanes.size())];
    switch (random_.below(60)) {
      case 0: cluster_.network.cut(lane.first); break;
      case 1: cluster_.network.cut_after(lane.first, lane.second, 1 + random_.below(600)); break;
      case 2: {
        const int shard = static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_.shards())));
        if (crashes_) {
          cluster_.restart(shard);
        }
        break;
      }
      case 3:
      case 4: cluster_.snapshot(static_cast<int>(random_.below(static_cast<std::uint64_t>(cluster_.shards())))); break;
      default: break;
    }
    return lane;
  }

  void act(std::size_t rank) {
    TestWorker& worker = *workers_[rank];
    if (pushed_[rank] < kEach) {
      push(worker, rank, random_.below(8) == 0);
    }
    if (random_.below(3) == 0) {
      worker.pull();
    }
    if (random_.below(12) == 0) {
      worker.client.settle();
      if (random_.below(2) == 0) {
        incarnations_[rank] += 1;
        worker.client.set_incarnation(incarnations_[rank]);
      }
    }
  }

  void push(TestWorker& worker, std::size_t rank, bool abandoned) {
    std::vector<float> gradient(kWorkers * kEach, 0);
    gradient[rank * kEach + static_cast<std::size_t>(pushed_[rank])] = abandoned ? 100 : 1;
    worker.client.begin_push(0);
    for (std::uint32_t parameter = kParameters; parameter-- > 0;) {
      worker.client.add_gradient(parameter, gradient.data());
      if (random_.below(4) == 0) {
        cluster_.deliver_one();
      }
    }
    if (abandoned) {
      worker.client.abandon_push();
    } else {
      worker.client.end_push(worker.hypers);
      ++pushed_[rank];
    }
  }

  void check() {
    std::uint64_t declared = 0;
    for (const auto& worker : workers_) {
      worker->client.settle();
      worker->pull();  // a replay, if need be, comes before it
    }
    workers_[0]->pull();
    for (const auto& worker : workers_) {
      declared += worker->client.counters().lost;
    }
    std::uint64_t missing = 0;
    for (int shard = 0; shard < cluster_.shards(); ++shard) {
      missing += missing_in(shard);
    }
    EXPECT_EQ(missing, declared);
  }

  // Pushes that a shard lacks: it has all elements of a push or none of them.
  std::uint64_t missing_in(int shard) {
    std::uint64_t missing = 0;
    for (int push = 0; push < kWorkers * kEach; ++push) {
      std::optional<float> seen;
      for (const Slice& slice : workers_[0]->client.layouts()[static_cast<std::size_t>(shard)].slices) {
        if (push >= slice.begin && push < slice.begin + slice.count) {
          const float value = workers_[0]->floats(slice.parameter)[static_cast<std::size_t>(push)];
          EXPECT_TRUE(value == 0 || value == 1) << "push " << push << ": " << value;
          EXPECT_EQ(seen.value_or(value), value) << "push " << push;
          seen = value;
        }
      }
      missing += seen && *seen == 0 ? 1 : 0;
    }
    return missing;
  }

  Random random_;
  const bool crashes_;
  Cluster cluster_;
  ClientOptions options_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
  std::vector<std::uint32_t> incarnations_;
  std::vector<int> pushed_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 40;  // sanitizers look at the code, not at the odds
#else
constexpr std::uint64_t kSeeds = 200;
#endif

TEST(ExactlyOnce, LedgerUnderRandomCuts) {
  const Quiet quiet;
  for (std::uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    LedgerRun(seed, false).run();
  }
}

TEST(ExactlyOnce, LedgerUnderRandomCutsAndCrashes) {
  const Quiet quiet;
  for (std::uint64_t seed = 1001; seed <= 1000 + kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    LedgerRun(seed, true).run();
  }
}

}  // namespace
}  // namespace downpour::ps
