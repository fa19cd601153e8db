#include "csrc/ps/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "csrc/base/random.h"
#include "tests/ps/ledger.h"

namespace downpour::ps {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- exactly once -------------------------------------------------------------------------------------------------

TEST(Shard, applies_a_push_once_and_answers_repeats_with_the_old_verdict) {
  Ledger ledger;
  const PushHeader first = ledger.header(0, 0);
  const PushResult applied = ledger.push(first);
  EXPECT_EQ(applied.verdict, Verdict::kApplied);
  EXPECT_FALSE(applied.repeated);
  EXPECT_EQ(applied.version, (Version{0, 1}));
  const PushResult repeated = ledger.push(first);
  EXPECT_EQ(repeated.verdict, Verdict::kApplied);
  EXPECT_TRUE(repeated.repeated);
  EXPECT_EQ(repeated.version, (Version{0, 1}));
  EXPECT_THAT(ledger.values(0), Each(1));
  EXPECT_EQ(ledger.shard.counters().repeats, 1u);
  EXPECT_EQ(ledger.shard.counters().applied, 1u);
}

// What left the window of verdicts was decided long ago; what was declared lost was dropped.
TEST(Shard, answers_repeats_whose_verdict_is_not_known) {
  Ledger ledger;
  for (std::uint64_t s = 0; s < VerdictTable::kWindow + 2; ++s) {
    ledger.push(0);
  }
  const PushResult old = ledger.push(ledger.header(0, 1));
  EXPECT_TRUE(old.repeated);
  EXPECT_EQ(old.verdict, Verdict::kApplied);
  EXPECT_EQ(ledger.shard.skip_to(1, 5), 5u);
  const PushResult lost = ledger.push(ledger.header(1, 2));
  EXPECT_TRUE(lost.repeated);
  EXPECT_EQ(lost.verdict, Verdict::kStale);
}

TEST(Shard, a_gap_is_refused_until_it_is_declared_lost) {
  Ledger ledger;
  ledger.push(0);
  const Shard::State before = state_of(ledger.shard);
  EXPECT_THAT([&] { ledger.push(ledger.header(0, 3)); },
              ThrowsMessage<Error>(HasSubstr("leaves a gap, expected push 1")));
  EXPECT_TRUE(state_of(ledger.shard) == before);
  EXPECT_EQ(ledger.shard.skip_to(0, 3), 2u);
  EXPECT_EQ(ledger.shard.counters().lost, 2u);
  EXPECT_EQ(ledger.push(ledger.header(0, 3)).verdict, Verdict::kApplied);
  EXPECT_EQ(ledger.shard.next_sequence(0), 4u);
}

// Any order of deliveries with any number of duplicates: each push counts once.
TEST(Shard, conserves_the_sum_of_pushes_under_duplicates) {
  Random random(1);
  Ledger ledger;
  std::uint64_t expected = 0;
  for (int i = 0; i < 3000; ++i) {
    const int worker = static_cast<int>(random.below(4));
    const std::uint64_t next = ledger.shard.next_sequence(worker);
    const std::uint64_t sequence = next - random.below(std::min<std::uint64_t>(next, 5) + 1);
    const PushResult result = ledger.push(ledger.header(worker, sequence), static_cast<float>(1 + worker));
    EXPECT_EQ(result.repeated, sequence < next);
    expected += sequence == next ? static_cast<std::uint64_t>(1 + worker) : 0;
  }
  EXPECT_THAT(ledger.values(0), Each(static_cast<float>(expected)));
  EXPECT_THAT(ledger.values(1), Each(static_cast<float>(expected)));
}

// ---- verdicts -----------------------------------------------------------------------------------------------------

TEST(Shard, second_push_for_a_lease_is_a_duplicate) {
  Ledger ledger;
  PushHeader header = ledger.header(0, 0);
  header.lease = 7;
  EXPECT_EQ(ledger.push(header).verdict, Verdict::kApplied);
  header.worker = 1;
  const PushResult duplicate = ledger.push(header);
  EXPECT_EQ(duplicate.verdict, Verdict::kDuplicate);
  EXPECT_FALSE(duplicate.repeated);
  EXPECT_EQ(duplicate.version, (Version{0, 1}));
  EXPECT_EQ(ledger.shard.next_sequence(1), 1u);
  EXPECT_EQ(ledger.push(header).verdict, Verdict::kDuplicate);
  EXPECT_THAT(ledger.values(0), Each(1));
  EXPECT_EQ(ledger.shard.counters().duplicates, 1u);
}

TEST(Shard, pushes_without_a_lease_are_never_duplicates) {
  Ledger ledger;
  EXPECT_EQ(ledger.push(0).verdict, Verdict::kApplied);
  EXPECT_EQ(ledger.push(1).verdict, Verdict::kApplied);
  EXPECT_EQ(ledger.shard.leases().count(), 0u);
}

TEST(Shard, drops_a_push_beyond_max_staleness) {
  Ledger ledger(2);
  PushHeader late = ledger.header(1, 0);
  late.lease = 5;
  ledger.push(0);
  ledger.push(0);
  PushHeader just_in_time = ledger.header(2, 0);
  just_in_time.base = {0, 0};
  EXPECT_EQ(ledger.push(just_in_time).verdict, Verdict::kApplied);
  const PushResult stale = ledger.push(late);
  EXPECT_EQ(stale.verdict, Verdict::kStale);
  EXPECT_EQ(stale.staleness, 3u);
  EXPECT_EQ(stale.version, (Version{0, 3}));
  EXPECT_TRUE(ledger.shard.leases().decided(5));
  EXPECT_EQ(ledger.shard.next_sequence(1), 1u);
  EXPECT_THAT(ledger.values(0), Each(3));
  EXPECT_EQ(ledger.shard.counters().stale, 1u);
  EXPECT_EQ(ledger.shard.counters().max_staleness_seen, 2u);
}

TEST(Shard, a_replay_that_was_never_acknowledged_is_exempt_from_staleness) {
  Ledger ledger(0);
  PushHeader header = ledger.header(1, 0);
  ledger.push(0);
  header.exempt_from_staleness = true;
  EXPECT_EQ(ledger.push(header).verdict, Verdict::kApplied);
  EXPECT_EQ(ledger.shard.counters().replayed, 1u);
}

TEST(Shard, refuses_a_gradient_that_is_not_finite) {
  Ledger ledger;
  PushHeader header = ledger.header(0, 0);
  header.lease = 3;
  header.check.finite = false;
  const PushResult refused = ledger.push(header, NAN);
  EXPECT_EQ(refused.verdict, Verdict::kRefused);
  EXPECT_EQ(refused.version, (Version{0, 0}));
  EXPECT_TRUE(ledger.shard.leases().decided(3));
  EXPECT_EQ(ledger.shard.next_sequence(0), 1u);
  EXPECT_THAT(ledger.values(0), Each(0));
  EXPECT_EQ(ledger.shard.counters().refused, 1u);
}

TEST(Shard, lease_comes_before_staleness_and_staleness_before_finiteness) {
  Ledger ledger(0);
  PushHeader first = ledger.header(0, 0);
  first.lease = 1;
  ledger.push(first);
  PushHeader all_wrong = ledger.header(1, 0);
  all_wrong.base = {0, 0};
  all_wrong.lease = 1;
  all_wrong.check.finite = false;
  EXPECT_EQ(ledger.push(all_wrong).verdict, Verdict::kDuplicate);
  all_wrong.sequence = 1;
  all_wrong.lease = 2;
  EXPECT_EQ(ledger.push(all_wrong).verdict, Verdict::kStale);
}

TEST(Shard, a_replayed_push_keeps_its_verdict) {
  for (const Verdict verdict : {Verdict::kApplied, Verdict::kStale, Verdict::kRefused}) {
    Ledger ledger(0);
    ledger.push(0);
    PushHeader replay = ledger.header(1, 0);
    replay.base = {0, 0};  // too old now
    replay.lease = 9;
    replay.replayed = verdict;
    EXPECT_EQ(ledger.push(replay).verdict, verdict);
    EXPECT_THAT(ledger.values(0), Each(verdict == Verdict::kApplied ? 2 : 1));
    EXPECT_EQ(ledger.shard.counters().replayed, 1u);
  }
}

TEST(Shard, of_the_replayed_pushes_for_one_lease_the_first_to_come_counts) {
  for (const Verdict first : {Verdict::kApplied, Verdict::kDuplicate}) {
    Ledger ledger;
    PushHeader replay = ledger.header(0, 0);
    replay.lease = 9;
    replay.replayed = first;
    EXPECT_EQ(ledger.push(replay).verdict, Verdict::kApplied);
    replay.worker = 1;
    replay.replayed = first == Verdict::kApplied ? Verdict::kDuplicate : Verdict::kApplied;
    EXPECT_EQ(ledger.push(replay).verdict, Verdict::kDuplicate);
    EXPECT_THAT(ledger.values(0), Each(1));
  }
}

// Its answer never arrived, so nobody knows that it was the second one.
TEST(Shard, an_unacknowledged_push_and_an_acknowledged_one_for_its_lease_count_once) {
  Ledger ledger;
  PushHeader unacknowledged = ledger.header(0, 0);
  unacknowledged.lease = 9;
  unacknowledged.exempt_from_staleness = true;
  EXPECT_EQ(ledger.push(unacknowledged).verdict, Verdict::kApplied);
  PushHeader replay = ledger.header(1, 0);
  replay.lease = 9;
  replay.replayed = Verdict::kApplied;
  EXPECT_EQ(ledger.push(replay).verdict, Verdict::kDuplicate);
  EXPECT_THAT(ledger.values(0), Each(1));
}

TEST(Shard, a_replayed_push_that_is_not_finite_is_refused_all_the_same) {
  Ledger ledger;
  PushHeader replay = ledger.header(0, 0);
  replay.replayed = Verdict::kApplied;
  replay.check.finite = false;
  EXPECT_EQ(ledger.push(replay, NAN).verdict, Verdict::kRefused);
  EXPECT_THAT(ledger.values(0), Each(0));
}

// ---- staleness and versions ---------------------------------------------------------------------------------------

TEST(Shard, staleness_is_the_distance_in_versions_and_never_negative) {
  Ledger ledger;
  for (int i = 0; i < 5; ++i) {
    ledger.push(0);
  }
  const auto staleness = [&](Version base) {
    PushHeader header = ledger.header(1, ledger.shard.next_sequence(1));
    header.base = base;
    return ledger.push(header).staleness;
  };
  EXPECT_EQ(staleness({0, 5}), 0u);
  EXPECT_EQ(staleness({0, 5}), 1u);
  ledger.shard.restore(state_of(ledger.shard));
  EXPECT_EQ(ledger.shard.version(), (Version{1, 7}));
  EXPECT_EQ(staleness({0, 5}), 2u) << "an older generation's version counts while it is not above this one's";
  EXPECT_EQ(staleness({0, 100}), 0u) << "that version was lost with its generation";
}

TEST(Shard, staleness_buckets_have_names_that_fit) {
  EXPECT_EQ(staleness_bucket_name(staleness_bucket(0)), "0");
  EXPECT_EQ(staleness_bucket_name(staleness_bucket(3)), "3");
  EXPECT_EQ(staleness_bucket_name(staleness_bucket(191)), "128-191");
  EXPECT_EQ(staleness_bucket_name(staleness_bucket(192)), ">=192");
  EXPECT_EQ(staleness_bucket(std::numeric_limits<std::uint64_t>::max()), ShardCounters::kStalenessBuckets - 1);
  for (std::uint64_t s = 4; s < 192; ++s) {
    const std::string name(staleness_bucket_name(staleness_bucket(s)));
    const std::uint64_t low = std::stoull(name), high = std::stoull(name.substr(name.find('-') + 1));
    EXPECT_TRUE(low <= s && s <= high) << s << " in " << name;
  }
  EXPECT_THROW(staleness_bucket_name(-1), Error);
  EXPECT_THROW(staleness_bucket_name(ShardCounters::kStalenessBuckets), Error);
}

TEST(Shard, counts_what_it_did) {
  Ledger ledger;
  ledger.push(0);
  PushHeader half = ledger.header(1, 0);
  half.present[0] = false;
  half.base = {0, 0};
  ledger.push(half);
  const ShardCounters& counters = ledger.shard.counters();
  EXPECT_EQ(counters.applied, 2u);
  EXPECT_EQ(counters.pushed_bytes, (40u + 3 + 3) * 4);
  EXPECT_EQ(counters.staleness[0], 1u);
  EXPECT_EQ(counters.staleness[1], 1u);
  EXPECT_EQ(counters.last_gradient_norm, 2.0);
  ledger.shard.counters().pulled_bytes += 8;
  EXPECT_EQ(counters.pulled_bytes, 8u);
  ledger.shard.restore(state_of(ledger.shard));
  EXPECT_EQ(counters.applied, 0u) << "counters are of this generation";
}

// ---- the rule -----------------------------------------------------------------------------------------------------

TEST(Shard, absent_gradients_leave_values_and_step_counts_alone) {
  Ledger ledger;
  PushHeader header = ledger.header(0, 0);
  header.present = {true, false};
  ledger.push(header);
  EXPECT_THAT(ledger.values(0), Each(1));
  EXPECT_THAT(ledger.values(1), Each(0));
  EXPECT_THAT(state_of(ledger.shard).steps, testing::ElementsAre(1, 0));
  ledger.push(0);
  EXPECT_THAT(state_of(ledger.shard).steps, testing::ElementsAre(2, 1));
  header = ledger.header(0, 2);
  header.present = {false, false};
  EXPECT_EQ(ledger.push(header).version, (Version{0, 3})) << "a push without gradients is a push";
}

// Any subset of missing gradients leaves the others' updates exact.
TEST(Shard, each_slice_has_the_sum_of_the_gradients_present) {
  Random random(3);
  Schema schema{{}, 1, RuleKind::kSgd, 0};
  for (int i = 0; i < 20; ++i) {
    schema.parameters.push_back({concat("p", i), {static_cast<std::int64_t>(random.below(50))}, Dtype::kFloat32, 0});
  }
  Ledger ledger(std::nullopt, schema);
  std::vector<int> present(ledger.shard.layout().slices.size());
  for (std::uint64_t s = 0; s < 200; ++s) {
    PushHeader header = ledger.header(0, s);
    for (std::size_t i = 0; i < present.size(); ++i) {
      header.present[i] = random.below(2) == 0;
      present[i] += header.present[i] ? 1 : 0;
    }
    ledger.push(header);
  }
  for (std::size_t i = 0; i < present.size(); ++i) {
    EXPECT_THAT(ledger.values(i), Each(static_cast<float>(present[i])));
  }
}

TEST(Shard, each_group_has_its_own_numbers) {
  Ledger ledger;
  PushHeader header = ledger.header(0, 0);
  header.groups[1].lr = -10;
  ledger.push(header);
  EXPECT_THAT(ledger.values(0), Each(1));
  EXPECT_THAT(ledger.values(1), Each(10));
}

// The shard adds nothing to the rule: two workers' serial pushes equal the rule on one stream of gradients.
TEST(Shard, serial_pushes_equal_the_serial_optimizer) {
  Schema schema{{{"w", {33}, Dtype::kFloat64, 0}}, 1, RuleKind::kAdam, 1};
  Ledger ledger(std::nullopt, schema);
  std::vector<double> p(33), m(33), v(33), most(33);
  const Hyper hyper{.lr = 0.1, .weight_decay = 0.01, .eps = 1e-8, .amsgrad = 1};
  Random random(4);
  for (int step = 1; step <= 20; ++step) {
    std::vector<std::byte> gradient = ledger.zeros();
    auto* const g = reinterpret_cast<double*>(gradient.data());
    std::generate(g, g + 33, [&] { return static_cast<double>(random.below(1000)) / 500 - 1; });
    apply_rule(schema.rule, hyper, Dtype::kFloat64, 33, step, p.data(), g, {m.data(), v.data(), most.data()});
    PushHeader header = ledger.header(step % 2, ledger.shard.next_sequence(step % 2));
    header.groups = {hyper};
    ledger.shard.push(header, gradient);
  }
  EXPECT_EQ(std::memcmp(ledger.shard.values().data(), p.data(), 33 * sizeof(double)), 0);
  EXPECT_EQ(state_of(ledger.shard).steps[0], 20);
}

// ---- mistakes -----------------------------------------------------------------------------------------------------

TEST(Shard, refuses_a_push_that_does_not_fit_before_any_effect) {
  Ledger ledger;
  const Shard::State before = state_of(ledger.shard);
  const auto refusal = [&](auto change, std::size_t gradient_bytes_short = 0) -> std::string {
    PushHeader header = ledger.header(0, 0);
    header.lease = 1;
    change(header);
    const std::vector<std::byte> gradient = ledger.gradient(1);
    try {
      ledger.shard.push(header, Bytes(gradient).first(gradient.size() - gradient_bytes_short));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal([](PushHeader& h) { h.groups.pop_back(); }), HasSubstr("expected 2 parameter groups, found 1"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.present.push_back(true); }), HasSubstr("expected 2 slices, found 3"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.sequence = 2; }), HasSubstr("gap"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.worker = -1; }), HasSubstr("worker -1"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.worker = VerdictTable::kMaxWorkers; }), HasSubstr("worker 65536"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.lease = LeaseTable::kMaxLease + 1; }), HasSubstr("lease"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.groups[1].lr = NAN; }), HasSubstr("lr is nan"));
  EXPECT_THAT(refusal([](PushHeader& h) { h.groups[1].momentum = 0.9; }), HasSubstr("needs 1 state buffers"));
  EXPECT_THAT(refusal([](PushHeader&) {}, 64), HasSubstr("bytes of gradient"));
  EXPECT_TRUE(state_of(ledger.shard) == before);
  EXPECT_EQ(refusal([](PushHeader&) {}), "accepted");
}

TEST(Shard, refuses_a_push_before_the_initial_values) {
  const Schema schema = ledger_schema();
  Shard shard(schema, partition(schema, 1)[0], std::nullopt);
  const Ledger ledger;
  EXPECT_THAT([&] { shard.push(ledger.header(0, 0), ledger.gradient(1)); },
              ThrowsMessage<Error>(HasSubstr("before the initial values")));
}

TEST(Shard, refuses_a_layout_of_another_schema) {
  const Schema small{{{"a", {40}, Dtype::kFloat32, 0}}, 1, RuleKind::kSgd, 0};
  EXPECT_THAT([&] { Shard(small, partition(ledger_schema(), 1)[0], std::nullopt); },
              ThrowsMessage<Error>(HasSubstr("the schema has 1 parameters")));
  ShardLayout layout = partition(small, 1)[0];
  layout.buffer_bytes = 64;
  EXPECT_THAT([&] { Shard(small, layout, std::nullopt); }, ThrowsMessage<Error>(HasSubstr("a buffer of 64")));
}

}  // namespace
}  // namespace downpour::ps
