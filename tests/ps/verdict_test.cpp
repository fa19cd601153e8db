#include "csrc/ps/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "csrc/base/random.h"

namespace downpour::ps {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

template <typename Table>
std::vector<std::byte> encoded(const Table& table) {
  Writer out;
  table.encode(out);
  return out.take();
}

template <typename Table>
Table decoded(Bytes bytes) {
  Reader in(bytes, "table");
  Table table = Table::decode(in);
  in.finish();
  return table;
}

template <typename Table>
void expect_round_trip(const Table& table) {
  const auto bytes = encoded(table);
  EXPECT_EQ(decoded<Table>(bytes), table);
  EXPECT_EQ(encoded(decoded<Table>(bytes)), bytes);
}

TEST(Verdict, has_names) {
  EXPECT_EQ(name(Verdict::kApplied), "applied");
  EXPECT_EQ(name(Verdict::kStale), "stale");
  EXPECT_EQ(name(Verdict::kRefused), "refused");
  EXPECT_EQ(name(Verdict::kDuplicate), "duplicate");
}

TEST(Version, generations_come_before_versions) {
  EXPECT_LT((Version{0, 100}), (Version{1, 0}));
  EXPECT_LT((Version{1, 0}), (Version{1, 1}));
}

TEST(VerdictTable, remembers_the_window_of_each_worker) {
  VerdictTable table;
  EXPECT_EQ(table.next_sequence(3), 0u);
  EXPECT_EQ(table.find(3, 0), std::nullopt);
  constexpr std::uint64_t kPushes = 2 * VerdictTable::kWindow + 100;
  const auto verdict_of = [](std::uint64_t s) { return static_cast<Verdict>(1 + s % 4); };
  for (std::uint64_t s = 0; s < kPushes; ++s) {
    table.record(3, s, verdict_of(s));
  }
  EXPECT_EQ(table.next_sequence(3), kPushes);
  EXPECT_EQ(table.next_sequence(2), 0u);
  for (std::uint64_t s = 0; s < kPushes; ++s) {
    const bool kept = s + VerdictTable::kWindow >= kPushes;
    ASSERT_EQ(table.find(3, s), kept ? std::optional(verdict_of(s)) : std::nullopt) << s;
  }
  EXPECT_EQ(table.find(3, kPushes), std::nullopt);
  expect_round_trip(table);
}

TEST(VerdictTable, a_gap_or_a_repeat_is_the_callers_mistake) {
  VerdictTable table;
  table.record(0, 0, Verdict::kApplied);
  EXPECT_THAT([&] { table.record(0, 0, Verdict::kApplied); },
              ThrowsMessage<Error>(HasSubstr("push 0, expected push 1")));
  EXPECT_THAT([&] { table.record(0, 2, Verdict::kApplied); },
              ThrowsMessage<Error>(HasSubstr("push 2, expected push 1")));
  EXPECT_EQ(table.next_sequence(0), 1u);
}

TEST(VerdictTable, refuses_impossible_workers_and_skips) {
  VerdictTable table;
  EXPECT_THROW(table.record(-1, 0, Verdict::kApplied), Error);
  EXPECT_THROW(table.record(VerdictTable::kMaxWorkers, 0, Verdict::kApplied), Error);
  EXPECT_THROW(table.skip_to(-1, 1), Error);
  EXPECT_THROW(table.skip_to(0, VerdictTable::kMaxSequence + 1), Error);
  EXPECT_EQ(table, VerdictTable{});
}

TEST(VerdictTable, skipped_pushes_have_no_verdict) {
  for (const std::uint64_t skip : {std::uint64_t{1}, std::uint64_t{10}, VerdictTable::kWindow - 1,
                                   VerdictTable::kWindow, VerdictTable::kWindow + 5, std::uint64_t{1} << 40}) {
    VerdictTable table;
    for (std::uint64_t s = 0; s < 7; ++s) {
      table.record(1, s, Verdict::kApplied);
    }
    EXPECT_EQ(table.skip_to(1, 3), 0u);
    EXPECT_EQ(table.skip_to(1, 7), 0u);
    EXPECT_EQ(table.skip_to(1, 7 + skip), skip);
    EXPECT_EQ(table.next_sequence(1), 7 + skip);
    table.record(1, 7 + skip, Verdict::kStale);
    EXPECT_EQ(table.find(1, 7 + skip), Verdict::kStale);
    EXPECT_EQ(table.find(1, 6 + skip), std::nullopt);
    EXPECT_EQ(table.find(1, 6), skip < VerdictTable::kWindow - 1 ? std::optional(Verdict::kApplied) : std::nullopt)
        << skip;
    expect_round_trip(table);
  }
}

// A table reached by any mixture of pushes and skips is what its bytes say.
TEST(VerdictTable, round_trip_of_random_histories) {
  Random random(7);
  for (int round = 0; round < 30; ++round) {
    VerdictTable table;
    for (int i = 0; i < 3000; ++i) {
      const int worker = static_cast<int>(random.below(5)) * 1000;
      if (random.below(200) == 0) {
        table.skip_to(worker, table.next_sequence(worker) + random.below(3000));
      } else {
        table.record(worker, table.next_sequence(worker), static_cast<Verdict>(1 + random.below(4)));
      }
    }
    expect_round_trip(table);
  }
}

TEST(VerdictTable, decode_refuses_what_is_no_table) {
  const auto refusal = [](auto build) -> std::string {
    Writer out;
    build(out);
    try {
      decoded<VerdictTable>(out.bytes());
    } catch (const ProtocolError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto row = [](Writer& out, std::int32_t worker, std::uint64_t next, std::uint8_t verdict) {
    out.put(worker).put(next).put(verdict);
  };
  EXPECT_EQ(refusal([&](Writer& out) {
              out.put(std::uint32_t{1});
              row(out, 4, 1, 1);
            }),
            "accepted");
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, -4, 1, 1);
              }),
              HasSubstr("worker -4"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, 65536, 1, 1);
              }),
              HasSubstr("worker 65536"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, 4, 0, 1);
              }),
              HasSubstr("next push 0"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, 4, ~std::uint64_t{0}, 1);
              }),
              HasSubstr("next push"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, 4, 1, 5);
              }),
              HasSubstr("verdict 5"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{2});
                row(out, 4, 1, 1);
                row(out, 4, 1, 1);
              }),
              HasSubstr("worker 4 after worker 4"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1000});
                row(out, 4, 1, 1);
              }),
              HasSubstr("count of 1000"));
  EXPECT_THAT(refusal([&](Writer& out) {
                out.put(std::uint32_t{1});
                row(out, 4, 2, 1);
              }),
              HasSubstr("truncated"));
}

TEST(LeaseTable, decides_each_lease_once_in_any_order) {
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    LeaseTable table;
    std::set<std::uint64_t> expected;
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t lease = random.below(250);
      table.record(lease);
      if (lease != 0) {
        expected.insert(lease);
      }
    }
    for (std::uint64_t lease = 0; lease < 300; ++lease) {
      ASSERT_EQ(table.decided(lease), expected.contains(lease)) << lease;
    }
    EXPECT_EQ(table.count(), expected.size());
    expect_round_trip(table);
  }
}

TEST(LeaseTable, leases_in_order_take_no_memory) {
  LeaseTable table;
  for (std::uint64_t lease = 1; lease <= 100'000; ++lease) {
    table.record(lease);
  }
  EXPECT_EQ(table.count(), 100'000u);
  EXPECT_EQ(encoded(table).size(), 4u + 16);
}

TEST(LeaseTable, zero_is_no_lease) {
  LeaseTable table;
  table.record(0);
  EXPECT_FALSE(table.decided(0));
  EXPECT_EQ(table.count(), 0u);
}

TEST(LeaseTable, refuses_a_lease_above_the_limit) {
  LeaseTable table;
  table.record(LeaseTable::kMaxLease);
  EXPECT_TRUE(table.decided(LeaseTable::kMaxLease));
  EXPECT_THROW(table.record(LeaseTable::kMaxLease + 1), Error);
  expect_round_trip(table);
}

TEST(LeaseTable, decode_refuses_what_is_no_table) {
  const auto refused = [](std::vector<std::pair<std::uint64_t, std::uint64_t>> runs, std::uint32_t count) {
    Writer out;
    out.put(count);
    for (const auto& [begin, end] : runs) {
      out.put(begin).put(end);
    }
    try {
      decoded<LeaseTable>(out.bytes());
    } catch (const ProtocolError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({{1, 2}, {3, 4}}, 2));
  EXPECT_TRUE(refused({{0, 2}}, 1));
  EXPECT_TRUE(refused({{2, 2}}, 1));
  EXPECT_TRUE(refused({{1, 3}, {3, 4}}, 2));
  EXPECT_TRUE(refused({{5, 6}, {1, 2}}, 2));
  EXPECT_TRUE(refused({{1, ~std::uint64_t{0}}}, 1));
  EXPECT_TRUE(refused({{1, 2}}, 2));
  EXPECT_TRUE(refused({{1, 2}}, 0));
}

LeaseTable leases_of(std::initializer_list<std::uint64_t> leases) {
  LeaseTable table;
  for (const std::uint64_t lease : leases) {
    table.record(lease);
  }
  return table;
}

TEST(LeaseTable, runs_begin_and_end_where_the_leases_do) {
  EXPECT_EQ(leases_of({9, 1, 3, 2}).runs(), (std::vector<LeaseTable::Run>{{1, 4}, {9, 10}}));
  EXPECT_EQ(LeaseTable({1, 4}), leases_of({1, 2, 3}));
  EXPECT_EQ(LeaseTable::all().count(), LeaseTable::kMaxLease);
  for (const LeaseTable::Run run : {LeaseTable::Run{0, 1}, {2, 2}, {3, 2}, {1, LeaseTable::kMaxLease + 2}}) {
    EXPECT_THROW(LeaseTable{run}, Error) << run.begin << " to " << run.end;
  }
}

TEST(LeaseTable, the_first_runs_are_a_part_of_it) {
  const LeaseTable table = leases_of({1, 2, 5, 9, 10});
  EXPECT_EQ(table.first_runs(0), LeaseTable());
  EXPECT_EQ(table.first_runs(2), leases_of({1, 2, 5}));
  EXPECT_EQ(table.first_runs(9), table);
}

TEST(LeaseTable, the_intersection_holds_what_both_have_decided) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    LeaseTable a, b, both;
    for (std::uint64_t lease = 1; lease < 40; ++lease) {
      const bool in_a = random.below(3) != 0, in_b = random.below(3) != 0;
      a.record(in_a ? lease : 0);
      b.record(in_b ? lease : 0);
      both.record(in_a && in_b ? lease : 0);
    }
    ASSERT_EQ(a.intersection(b), both);
    ASSERT_EQ(b.intersection(a).count(), both.count());
    ASSERT_EQ(a.intersection(LeaseTable::all()), a);
    ASSERT_EQ(a.intersection({}), LeaseTable());
  }
}

TEST(LeaseTable, WithoutAnother) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    LeaseTable a, b, rest;
    for (int i = 0; i < 40; ++i) {
      a.record(1 + random.below(60));
      b.record(1 + random.below(60));
    }
    for (std::uint64_t lease = 1; lease <= 60; ++lease) {
      if (a.decided(lease) && !b.decided(lease)) {
        rest.record(lease);
      }
    }
    EXPECT_EQ(a.without(b), rest);
    EXPECT_EQ(a.without({}), a);
    EXPECT_EQ(a.without(LeaseTable::all()), LeaseTable());
  }
}

}  // namespace
}  // namespace downpour::ps
