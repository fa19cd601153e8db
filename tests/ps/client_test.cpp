#include "csrc/ps/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <new>

#include "tests/ps/cluster.h"
#include "tests/ps/ledger.h"

// One client or two against real shards over inproc, in an order that the test decides.
namespace downpour::ps {
namespace {

using testing::HasSubstr;

// The message of the error of that type that `call` throws.
template <typename ErrorType, typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  } catch (const std::exception& error) {
    return concat("another error: ", error.what());
  }
  return "no error";
}

TEST(Client, PullAfterPushesContainsThem) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push();
  worker.push();
  worker.pull();
  EXPECT_EQ(worker.value(0), 2);
  EXPECT_EQ(worker.value(1), 2);
  EXPECT_EQ(worker.client.settle().applied, 2u);
  EXPECT_EQ(worker.client.unsettled(), 0);
  EXPECT_EQ(worker.client.counters().pushes, 2u);
  EXPECT_EQ(worker.client.counters().pulls, 1u);
  EXPECT_EQ(worker.client.counters().pushed_bytes, 2 * 43 * sizeof(float));
  EXPECT_EQ(worker.client.counters().pulled_bytes, 43 * sizeof(float));
  EXPECT_EQ(worker.client.medium(), "inproc");
}

TEST(Client, SmallFragmentsInEitherOrderOfLayersCarryTheSame) {
  const Schema schema{{{"a", {100}, Dtype::kFloat32, 0},
                       {"b", {7}, Dtype::kFloat32, 0},
                       {"c", {33}, Dtype::kFloat32, 0},
                       {"d", {64}, Dtype::kFloat32, 0}},
                      1,
                      RuleKind::kSgd,
                      0};
  for (const std::uint64_t fragment_bytes : {64, 128, 256, 4096}) {
    Cluster cluster({.schema = schema, .shards = 2});
    TestWorker worker(cluster, 0, 1, {.fragment_bytes = fragment_bytes});
    worker.initialise();
    worker.client.begin_push(0);
    for (const std::uint32_t parameter : {3u, 2u, 0u, 1u}) {
      std::vector<float> gradient(worker.values[parameter].size() / 4);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(1000 * parameter + i);
      }
      worker.client.add_gradient(parameter, gradient.data());
    }
    worker.client.end_push(worker.hypers);
    worker.pull();
    for (std::uint32_t parameter = 0; parameter < 4; ++parameter) {
      const auto found = worker.floats(parameter);
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i], static_cast<float>(1000 * parameter + i)) << fragment_bytes;
      }
    }
  }
}

TEST(Client, AbsentGradientsLeaveValuesAndStepsAlone) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push(1, [](std::uint32_t parameter) { return parameter == 1; });
  worker.push(1, [](std::uint32_t) { return false; });
  worker.pull();
  EXPECT_EQ(worker.value(0), 0);
  EXPECT_EQ(worker.value(1), 1);
  EXPECT_EQ(worker.client.settle().applied, 2u);
}

TEST(Client, ZeroSizeParametersAndMoreShardsThanElements) {
  const Schema schema{
      {{"empty", {0, 4}, Dtype::kFloat32, 0}, {"w", {3}, Dtype::kFloat32, 0}, {"d", {2}, Dtype::kFloat64, 0}},
      1,
      RuleKind::kSgd,
      0};
  Cluster cluster({.schema = schema, .shards = 7});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.client.begin_push(0);
  const std::vector<float> ones(3, 1);
  const std::vector<double> doubles(2, 0.5);
  worker.client.add_gradient(0, nullptr);
  worker.client.add_gradient(1, ones.data());
  worker.client.add_gradient(2, doubles.data());
  worker.client.end_push(worker.hypers);
  worker.pull();
  EXPECT_EQ(worker.value(1), 1);
  double pulled[2];
  std::memcpy(pulled, worker.values[2].data(), sizeof(pulled));
  EXPECT_EQ(pulled[1], 0.5);
  EXPECT_EQ(worker.client.settle().applied, 7u);
}

TEST(Client, OnlyTheFirstOfferOfValuesCounts) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker first(cluster, 0), second(cluster, 1);
  const std::vector<float> ones(40, 1), fives(40, 5);
  std::memcpy(first.values[0].data(), ones.data(), 160);
  std::memcpy(second.values[0].data(), fives.data(), 160);
  first.initialise();
  second.initialise();
  second.pull();
  EXPECT_EQ(second.value(0), 1);
}

TEST(Client, PullsWaitForTheInitialValues) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker early(cluster, 0), late(cluster, 1);
  early.client.open();
  early.client.begin_pull();
  cluster.deliver_all();
  EXPECT_EQ(cluster.server().shard().counters().pulled_bytes, 0u);
  late.initialise();
  cluster.deliver_all();
  EXPECT_EQ(cluster.server().shard().counters().pulled_bytes, 43 * sizeof(float));
  early.finish_pull();
  EXPECT_EQ(early.value(0), 0);
}

TEST(Client, AnAbandonedPushLeavesNothingBehind) {
  for (const std::uint64_t fragment_bytes : {64, 4096}) {
    Cluster cluster({.schema = ledger_schema(), .shards = 2});
    TestWorker worker(cluster, 0, 1, {.fragment_bytes = fragment_bytes});
    worker.initialise();
    worker.push();
    worker.begin_and_add(100);
    worker.client.abandon_push();
    worker.push();
    worker.pull();
    EXPECT_EQ(worker.value(0), 2);
    EXPECT_EQ(worker.value(1), 2);
    EXPECT_EQ(worker.client.settle().applied, 4u);
    EXPECT_EQ(worker.client.counters().reconnects, 0u);
  }
}

TEST(Client, TwoWorkersInterleavedEqualSerialSgd) {
  const Schema schema{{{"w", {257}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 1};
  Cluster cluster({.schema = schema});
  TestWorker workers[] = {{cluster, 0}, {cluster, 1}};
  workers[0].initialise();
  workers[1].initialise();
  std::vector<float> values(257, 0), momentum(257, 0), gradient(257);
  const Hyper hyper{.lr = 0.37, .weight_decay = 0.011, .momentum = 0.9};
  workers[0].hypers = workers[1].hypers = {hyper};
  Random random(5);
  for (int step = 1; step <= 40; ++step) {
    for (float& g : gradient) {
      g = static_cast<float>(random.below(2001)) / 997.f - 1;
    }
    TestWorker& worker = workers[random.below(2)];
    worker.client.begin_push(0);
    worker.client.add_gradient(0, gradient.data());
    worker.client.end_push(worker.hypers);
    cluster.deliver_all();
    apply_rule(RuleKind::kSgd, hyper, Dtype::kFloat32, 257, step, values.data(), gradient.data(), {momentum.data()});
  }
  workers[0].pull();
  EXPECT_EQ(workers[0].floats(0), values);
}

TEST(Client, StalenessIsTheNumberOfUpdatesInBetween) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  a.pull();
  b.pull();
  for (int i = 0; i < 3; ++i) {
    b.push();
    b.pull();
  }
  EXPECT_EQ(b.client.settle().mean_staleness, 0);
  a.push();  // of version 0, at version 3
  a.pull();  // version 4
  a.push();  // of version 4, at version 4
  const StepReport report = a.client.settle();
  EXPECT_DOUBLE_EQ(report.mean_staleness, 1.5);
  EXPECT_EQ(cluster.server().shard().counters().staleness[3], 1u);
}

TEST(Client, AKeptBaseVersionIsThatOfTheOldestGradient) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  a.pull();
  a.client.keep_base_version();
  b.push();
  cluster.deliver_all();
  a.pull();
  a.client.keep_base_version();  // the older one stays
  a.push();
  EXPECT_EQ(a.client.settle().mean_staleness, 1);
  a.pull();
  a.push();
  EXPECT_EQ(a.client.settle().mean_staleness, 0);
}

TEST(Client, TooStalePushesAreDroppedAndCounted) {
  Cluster cluster({.schema = ledger_schema(), .max_staleness = 1});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  a.pull();
  b.pull();
  for (int i = 0; i < 2; ++i) {
    b.push();
    b.pull();
  }
  a.push(100);
  const StepReport report = a.client.settle();
  EXPECT_EQ(report.stale, 1u);
  EXPECT_EQ(report.applied, 0u);
  a.pull();
  EXPECT_EQ(a.value(), 2);
}

TEST(Client, NonFinitePushesAreRefusedAndCounted) {
  Cluster cluster({.schema = ledger_schema(), .shards = 2});
  TestWorker worker(cluster, 0);
  worker.initialise();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    worker.client.begin_push(0);
    std::vector<float> gradient(40, 1);
    gradient[1] = bad;
    worker.client.add_gradient(0, gradient.data());
    worker.client.end_push(worker.hypers);
  }
  worker.push();
  const StepReport report = worker.client.settle();
  EXPECT_EQ(report.refused, 2u);  // the shard that has element 1, twice
  EXPECT_EQ(report.applied, 4u);
  worker.pull();
  for (const float value : worker.floats(0)) {
    EXPECT_TRUE(value == 1 || value == 3);
  }
}

TEST(Client, ALeaseIsAppliedOnceAndReportedWhenAllShardsDecided) {
  Cluster cluster({.schema = ledger_schema(), .shards = 2});
  TestWorker a(cluster, 0), b(cluster, 1);
  a.initialise();
  b.initialise();
  a.push(1, nullptr, 5);
  EXPECT_TRUE(a.client.take_decided_leases().empty());
  a.client.settle();
  EXPECT_EQ(a.client.take_decided_leases(), std::vector<std::uint64_t>{5});
  EXPECT_TRUE(a.client.take_decided_leases().empty());
  b.push(1, nullptr, 5);
  EXPECT_EQ(b.client.settle().duplicate, 2u);
  EXPECT_EQ(b.client.take_decided_leases(), std::vector<std::uint64_t>{5});
  b.pull();
  EXPECT_EQ(b.value(), 1);
}

TEST(Client, MistakesOfTheCallerChangeNothing) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0);
  worker.initialise();
  const std::vector<float> gradient(40, 1);
  EXPECT_THROW(worker.client.add_gradient(0, gradient.data()), Error);
  EXPECT_THROW(worker.client.end_push(worker.hypers), Error);
  EXPECT_THROW(worker.finish_pull(), Error);
  worker.client.begin_push(0);
  EXPECT_THROW(worker.client.begin_push(0), Error);
  EXPECT_THROW(worker.client.add_gradient(2, gradient.data()), Error);
  worker.client.add_gradient(0, gradient.data());
  EXPECT_THAT(error_of<Error>([&] { worker.client.add_gradient(0, gradient.data()); }), HasSubstr("'a' twice"));
  EXPECT_THROW(worker.client.end_push({}), Error);
  worker.client.end_push(worker.hypers);
  worker.pull();
  EXPECT_EQ(worker.value(0), 1);
  EXPECT_EQ(worker.value(1), 0);
}

TEST(Client, EveryWaitEndsAtTheDeadlineAndNamesWhatItWaitedFor) {
  Cluster cluster({.schema = ledger_schema(), .shards = 2});
  TestWorker worker(cluster, 3, 1, {.call_deadline = std::chrono::seconds(30)});
  worker.initialise();
  cluster.hold(1, 1);
  worker.push();
  const TimePoint start = cluster.clock.now();
  const std::string text = error_of<TimeoutError>([&] { worker.client.settle(); });
  EXPECT_EQ(cluster.clock.now() - start, std::chrono::seconds(30));
  EXPECT_THAT(text, HasSubstr("worker 3"));
  EXPECT_THAT(text, HasSubstr("acknowledgement"));
  EXPECT_THAT(text, HasSubstr("shard 1"));
  EXPECT_THAT(text, HasSubstr("30 s"));
  EXPECT_THAT(error_of<TimeoutError>([&] { worker.pull(); }), HasSubstr("pull"));
  cluster.release(1, 1);  // the client may be used again
  EXPECT_EQ(worker.client.settle().applied, 2u);
  worker.pull();
  EXPECT_EQ(worker.value(), 1);
}

TEST(Client, AServerThatIsNotThereIsATimeoutWithTheReason) {
  Cluster cluster({.schema = ledger_schema()});
  cluster.crash();
  TestWorker worker(cluster, 0);
  const std::string text = error_of<TimeoutError>([&] { worker.client.open(); });
  EXPECT_THAT(text, HasSubstr("shard 0"));
  EXPECT_THAT(text, HasSubstr("nobody listens"));
  cluster.start(0);
  worker.initialise();
  worker.push();
  worker.pull();
  EXPECT_EQ(worker.value(), 1);
}

TEST(Client, AnotherSchemaIsRefusedAtOnce) {
  Cluster cluster({.schema = ledger_schema()});
  Cluster other({.schema = ledger_schema(RuleKind::kAdam)});
  ClusterConnector connector(cluster);
  ClientOptions options = TestWorker::with({}, 0, 1);
  Client stranger(other.agreement.schema, 1, connector, options);
  EXPECT_THAT(error_of<ProtocolError>([&] { stranger.open(); }), HasSubstr("another model"));
  options.job = 8;
  Client foreigner(cluster.agreement.schema, 1, connector, options);
  EXPECT_THAT(error_of<ProtocolError>([&] { foreigner.open(); }), HasSubstr("another job"));
  EXPECT_LT(cluster.clock.now() - TimePoint{}, std::chrono::seconds(1));
}

TEST(Client, CreditsBoundWhatIsUnderWayAndAllArrives) {
  const Schema schema{{{"w", {16 * 300}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  Cluster cluster({.schema = schema});
  TestWorker worker(cluster, 0, 1, {.fragment_bytes = 64});  // 300 fragments, 64 credits
  worker.initialise();
  cluster.deliver_all();
  const int link = cluster.newest_link();
  worker.begin_and_add(1);
  EXPECT_EQ(cluster.network.waiting(link, 0), 64);
  worker.client.end_push(worker.hypers);
  worker.pull();
  EXPECT_EQ(worker.value(), 1);
}

TEST(Client, StagingSlotsBoundThePushesUnderWay) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0);
  worker.initialise();
  for (int i = 0; i < 4; ++i) {
    worker.push();
  }
  cluster.hold(0, 1);
  EXPECT_THROW(worker.client.begin_push(0), TimeoutError);  // of five, one must be acknowledged first
  cluster.release(0, 1);
  worker.push();
  worker.pull();
  EXPECT_EQ(worker.value(), 5);
}

TEST(Client, ARestartedWorkerGoesOnAtTheServersNumber) {
  Cluster cluster({.schema = ledger_schema(), .shards = 2});
  {
    TestWorker worker(cluster, 0);
    worker.initialise();
    worker.push();
    worker.push();
    worker.client.settle();
  }
  TestWorker again(cluster, 0, 2);
  again.initialise();
  again.push();
  EXPECT_EQ(again.client.settle().applied, 2u);
  again.pull();
  EXPECT_EQ(again.value(), 3);
  EXPECT_EQ(cluster.server().shard().next_sequence(0), 3u);
}

TEST(Client, ADeadWorkersPartialPushIsDiscarded) {
  Cluster cluster({.schema = ledger_schema()});
  {
    TestWorker worker(cluster, 0, 1, {.fragment_bytes = 64});
    worker.initialise();
    worker.begin_and_add(100);
    cluster.deliver_all();
  }
  cluster.deliver_all();
  TestWorker again(cluster, 0, 2, {.fragment_bytes = 64});
  again.initialise();
  again.push();
  again.pull();
  EXPECT_EQ(again.value(), 1);
}

TEST(Client, AFencedLifeIsRefusedAndGoesOnUnderANewIncarnation) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push();
  cluster.hold(0, 0);
  worker.push();  // late: the fence comes first
  cluster.server().fence({0, 2});
  cluster.release(0, 0);
  EXPECT_THAT(error_of<FencedError>([&] { worker.client.settle(); }), HasSubstr("incarnation 1 of worker 0 is over"));
  EXPECT_EQ(cluster.server().shard().version().version, 0u);
  worker.client.set_incarnation(2);
  EXPECT_EQ(worker.client.settle().applied, 2u);
  worker.pull();
  EXPECT_EQ(worker.value(), 2);
}

// Under shared buffers a plain group carries no gradients: its changes are checked, and in no norm.
TEST(Client, TheNormLeavesPlainGroupsOutAndTheCheckDoesNot) {
  const Schema schema{
      {{"weight", {4}, Dtype::kFloat32, 0}, {"running_mean", {9}, Dtype::kFloat32, 1}}, 2, RuleKind::kSgd, 0};
  Cluster cluster({.schema = schema});
  TestWorker worker(cluster, 0);
  worker.hypers[1].plain = 1;
  worker.initialise();
  worker.push(3);
  worker.client.settle();
  EXPECT_EQ(cluster.server().shard().counters().last_gradient_norm, 6);
  worker.client.begin_push(0);
  const std::vector<float> good(4, 1), bad(9, std::numeric_limits<float>::quiet_NaN());
  worker.client.add_gradient(0, good.data());
  worker.client.add_gradient(1, bad.data());
  worker.client.end_push(worker.hypers);
  EXPECT_EQ(worker.client.settle().refused, 1u);
}

TEST(Client, AShortageAtTheServerIsWaitedOut) {
  Cluster cluster({.schema = ledger_schema()});
  int short_of_memory = 3;
  cluster.when_asked = [&] {
    if (short_of_memory-- > 0) {
      throw std::bad_alloc();
    }
  };
  TestWorker worker(cluster, 0);
  worker.initialise();
  worker.push();
  worker.pull();
  EXPECT_EQ(worker.value(), 1);
  EXPECT_LT(short_of_memory, 0);
}

TEST(Client, AShortageThatLastsIsATimeoutWithTheReason) {
  Cluster cluster({.schema = ledger_schema()});
  cluster.when_asked = [] { throw std::bad_alloc(); };
  TestWorker worker(cluster, 0);
  EXPECT_THAT(error_of<TimeoutError>([&] { worker.client.open(); }), HasSubstr("no memory for another connection"));
}

// Stopped inside a call for longer than the deadline: it has heard nothing yet, and what it hears then is that it was fenced.
TEST(Client, TimeForWhichItsProcessStoodStillIsNotWaited) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker worker(cluster, 0, 1, {.call_deadline = std::chrono::seconds(60)});
  worker.initialise();
  worker.push();
  cluster.server().fence({0, 2});
  bool stopped = false;
  cluster.script = [&](const auto& lanes) {
    cluster.clock.advance(std::exchange(stopped, true) ? Duration(0) : std::chrono::seconds(90));
    return lanes.front();
  };
  EXPECT_THAT(error_of<FencedError>([&] { worker.client.settle(); }), HasSubstr("incarnation 1 of worker 0 is over"));
  EXPECT_TRUE(stopped);
  worker.client.set_incarnation(2);
  EXPECT_EQ(worker.client.settle().applied, 1u);
}

TEST(Client, AHigherIncarnationEndsTheLowerOne) {
  Cluster cluster({.schema = ledger_schema()});
  TestWorker old(cluster, 0);
  old.initialise();
  old.push();
  cluster.deliver_all();
  TestWorker young(cluster, 0, 2);
  young.initialise();
  EXPECT_THROW(
      {
        old.push();
        old.client.settle();
        old.pull();
      },
      FencedError);
  young.push();
  young.pull();
  EXPECT_EQ(young.value(), 2);
}

}  // namespace
}  // namespace downpour::ps
