#include "csrc/ps/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "csrc/base/random.h"
#include "tests/ps/ledger.h"
#include "tests/support/allocations.h"

namespace downpour::ps {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- initial values -----------------------------------------------------------------------------------------------

TEST(Shard, only_the_first_initial_values_count) {
  const Schema schema = ledger_schema();
  Shard shard(schema, partition(schema, 1)[0], std::nullopt);
  EXPECT_FALSE(shard.initialised());
  std::vector<std::byte> values(static_cast<std::size_t>(shard.layout().buffer_bytes), std::byte{1});
  EXPECT_TRUE(shard.initialise(values, {}));
  EXPECT_TRUE(shard.initialised());
  EXPECT_FALSE(shard.initialise(std::vector<std::byte>(values.size()), {}));
  EXPECT_EQ(shard.values()[0], std::byte{1});
  EXPECT_EQ(shard.version(), (Version{0, 0}));
}

TEST(Shard, adagrad_begins_with_each_groups_accumulator) {
  const Schema schema = ledger_schema(RuleKind::kAdagrad);
  Shard shard(schema, partition(schema, 1)[0], std::nullopt);
  const std::vector<std::byte> values(static_cast<std::size_t>(shard.layout().buffer_bytes));
  EXPECT_THAT([&] { shard.initialise(values, std::vector<double>{1}); },
              ThrowsMessage<Error>(HasSubstr("expected 2 initial acc")));
  EXPECT_THAT(
      [&] {
        shard.initialise(Bytes(values).first(8), std::vector<double>{1, 2});
      },
      ThrowsMessage<Error>(HasSubstr("found 8")));
  EXPECT_FALSE(shard.initialised());
  shard.initialise(values, std::vector<double>{0.25, 3});
  const Shard::State state = state_of(shard);
  float first = 0, second = 0;
  std::memcpy(&first, state.optimizer_state[0].data(), 4);
  std::memcpy(&second, state.optimizer_state[0].data() + shard.layout().slices[1].offset_bytes, 4);
  EXPECT_EQ(first, 0.25f);
  EXPECT_EQ(second, 3.0f);
}

TEST(Shard, buffers_begin_at_cache_lines) {
  const Ledger ledger;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ledger.shard.values().data()) % 64, 0u);
}

TEST(Shard, empty_shards_take_pushes) {
  const Schema schema{{{"w", {1}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  Shard shard(schema, partition(schema, 4)[0], std::nullopt);
  EXPECT_TRUE(shard.initialise({}, {}));
  PushHeader header;
  header.groups.resize(1);
  EXPECT_EQ(shard.push(header, {}).version, (Version{0, 1}));
}

// ---- state --------------------------------------------------------------------------------------------------------

TEST(Shard, restore_refuses_a_state_of_other_sizes) {
  Ledger ledger(std::nullopt, ledger_schema(RuleKind::kSgd, 1));
  ledger.push(0);
  const Shard::State good = state_of(ledger.shard);
  const auto refusal = [&](auto change) -> std::string {
    Shard::State state = good;
    change(state);
    try {
      ledger.shard.restore(std::move(state));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal([](Shard::State& s) { s.values.pop_back(); }), HasSubstr("bytes of values"));
  EXPECT_THAT(refusal([](Shard::State& s) { s.optimizer_state.clear(); }), HasSubstr("optimizer state buffers"));
  EXPECT_THAT(refusal([](Shard::State& s) { s.optimizer_state[0].resize(3); }), HasSubstr("bytes of optimizer state"));
  EXPECT_THAT(refusal([](Shard::State& s) { s.steps.push_back(0); }), HasSubstr("step counts"));
  EXPECT_THAT(refusal([](Shard::State& s) { s.steps[0] = -1; }), HasSubstr("step count of -1"));
  EXPECT_TRUE(state_of(ledger.shard) == good);
  EXPECT_EQ(refusal([](Shard::State&) {}), "accepted");
  EXPECT_EQ(ledger.shard.version(), (Version{1, 1}));
}

TEST(Shard, restore_begins_the_next_generation_with_the_same_tables) {
  Ledger ledger;
  PushHeader header = ledger.header(3, 0);
  header.lease = 4;
  ledger.push(header);
  Ledger other;
  other.shard.restore(state_of(ledger.shard));
  EXPECT_EQ(other.shard.version(), (Version{1, 1}));
  EXPECT_TRUE(other.shard.initialised());
  EXPECT_EQ(other.shard.verdicts(), ledger.shard.verdicts());
  EXPECT_EQ(other.shard.leases(), ledger.shard.leases());
  EXPECT_TRUE(other.push(header).repeated);
  EXPECT_FALSE(other.shard.initialise(other.gradient(9), {}));
  EXPECT_THAT(other.values(0), Each(1));
}

// Workers that keep what no snapshot covers and replay it with the verdicts they were given. What a worker was told
// stays true through any crash; a push that was never acknowledged is judged anew.
class CrashingJob {
 public:
  CrashingJob(std::uint64_t seed, std::optional<std::uint64_t> max_staleness) : random_(seed), ledger_(max_staleness) {
    ledger_.shard.copy_state(saved_);
  }

  void run(int events) {
    for (int i = 0; i < events; ++i) {
      const std::uint64_t event = random_.below(20);
      if (event == 0) {
        ledger_.shard.copy_state(saved_);
      } else if (event == 1) {
        crash();
      } else {
        push(static_cast<int>(random_.below(3)));
      }
    }
    crash();
  }

  void expect_conserved() {
    float sum = 0;
    std::set<std::uint64_t> leases;
    for (const auto& [worker, pushes] : pushes_) {
      EXPECT_EQ(ledger_.shard.next_sequence(worker), pushes.size());
      for (const Push& push : pushes) {
        if (push.verdict == Verdict::kApplied) {
          sum += push.value;
          EXPECT_TRUE(push.header.lease == 0 || leases.insert(push.header.lease).second) << push.header.lease;
        }
      }
    }
    EXPECT_GT(sum, 0);
    EXPECT_THAT(ledger_.values(0), Each(sum));
    EXPECT_THAT(ledger_.values(1), Each(sum));
  }

 private:
  struct Push {
    PushHeader header;
    float value;
    Verdict verdict;
    bool acknowledged;
  };

  void push(int worker) {
    Push push{ledger_.header(worker, pushes_[worker].size()),
              static_cast<float>(1 + random_.below(9)),
              {},
              random_.below(10) != 0};
    push.header.base.version -= random_.below(std::min<std::uint64_t>(push.header.base.version, 6) + 1);
    push.header.lease = random_.below(3) == 0 ? 1 + random_.below(1000) : 0;
    push.verdict = ledger_.push(push.header, push.value).verdict;
    pushes_[worker].push_back(push);
  }

  void crash() {
    ledger_.shard.restore(saved_);
    for (auto& [worker, pushes] : pushes_) {
      for (std::size_t s = ledger_.shard.next_sequence(worker); s < pushes.size(); ++s) {
        replay(pushes[s]);
      }
    }
  }

  // Which of the pushes for one lease is the first may change.
  static bool stays(const Push& push, Verdict verdict) {
    const auto in_turn = [](Verdict v) { return v == Verdict::kApplied || v == Verdict::kDuplicate; };
    return verdict == push.verdict || (push.header.lease != 0 && in_turn(verdict) && in_turn(push.verdict));
  }

  void replay(Push& push) {
    PushHeader header = push.header;
    header.exempt_from_staleness = !push.acknowledged;
    if (push.acknowledged) {
      header.replayed = push.verdict;
    }
    const PushResult result = ledger_.push(header, push.value);
    EXPECT_FALSE(result.repeated);
    EXPECT_TRUE(push.acknowledged ? stays(push, result.verdict) : result.verdict != Verdict::kStale);
    push.verdict = result.verdict;
    push.acknowledged = true;
  }

  Random random_;
  Ledger ledger_;
  Shard::State saved_;
  std::map<int, std::vector<Push>> pushes_;  // of each worker, by sequence
};

TEST(Shard, crashes_and_replays_lose_nothing_and_double_nothing) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    CrashingJob job(seed, seed % 2 == 0 ? std::nullopt : std::optional<std::uint64_t>(3));
    job.run(300);
    job.expect_conserved();
  }
}

// ---- memory -------------------------------------------------------------------------------------------------------

TEST(Shard, push_allocates_nothing_in_the_steady_state) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "ThreadSanitizer has its own operator new";
  }
  for (const RuleKind rule : {RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kAdam, RuleKind::kAdamW}) {
    Ledger ledger(std::nullopt, ledger_schema(rule, 1));
    PushHeader header = ledger.header(0, 0);
    const std::vector<std::byte> gradient = ledger.gradient(1);
    const auto push = [&] {
      header.lease = header.sequence + 1;
      ledger.shard.push(header, gradient);
      ledger.shard.push(header, gradient);  // a repeat
      ++header.sequence;
    };
    push();
    const std::uint64_t before = allocations();
    for (std::uint64_t i = 0; i < 2 * VerdictTable::kWindow; ++i) {
      push();
    }
    EXPECT_EQ(allocations(), before) << name(rule);
  }
}

TEST(Shard, copy_state_reuses_memory) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "ThreadSanitizer has its own operator new";
  }
  Ledger ledger(std::nullopt, ledger_schema(RuleKind::kAdam));
  for (int worker = 0; worker < 10; ++worker) {
    ledger.push(worker);
  }
  Shard::State copy = state_of(ledger.shard);
  ledger.push(3);
  const std::uint64_t before = allocations();
  ledger.shard.copy_state(copy);
  EXPECT_EQ(allocations(), before);
  EXPECT_TRUE(copy == state_of(ledger.shard));
}

}  // namespace
}  // namespace downpour::ps
