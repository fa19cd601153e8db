#include "csrc/collective/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "csrc/collective/algorithm_table.h"
#include "csrc/collective/plan_parts.h"
#include "tests/collective/plan_simulation.h"

namespace downpour::collective {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
constexpr Op kOps[] = {Op::kBarrier, Op::kBroadcast, Op::kAllReduce,     Op::kReduce,  Op::kAllGather,
                       Op::kGather,  Op::kScatter,   Op::kReduceScatter, Op::kAllToAll};
constexpr std::int64_t kElementBytes = 16;  // the largest: the table's limits are passed with the fewest elements

int ceil_log2(int world) { return static_cast<int>(std::bit_width(static_cast<unsigned>(world - 1))); }

bool has_root(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

CallShape shape_of(Op op, std::int64_t count, int root = 0) {
  return {op, op == Op::kBarrier ? ElementType::kOpaque8 : ElementType::kComplex128, ReduceOp::kSum, root, count};
}

std::string describe(const CallShape& shape, int world) { return concat(to_string(shape), " in a world of ", world); }

// ---- plans ----------------------------------------------------------------------------------------------------------

std::vector<Plan> plans_for(const CallShape& shape, int world) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < world; ++rank) {
    plans.push_back(make_plan(shape, rank, world));
  }
  return plans;
}

std::vector<Plan> plans_by(void (*way)(Draft&), const CallShape& shape, int world) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < world; ++rank) {
    const UnevenCounts none;
    Draft draft{shape, none, rank, world};
    way(draft);
    plans.push_back(std::move(draft.plan));
  }
  return plans;
}

bool overlap(const Slice& a, const Slice& b) {
  return a.buffer == b.buffer && a.begin < b.begin + b.count && b.begin < a.begin + a.count;
}

// What each step must hold to by itself; "" when it does.
std::string fault_of(const Plan& plan, Op op) {
  for (const Copy& copy : plan.copies) {
    if (copy.from.count <= 0 || overlap(copy.from, copy.to)) {
      return "a copy of nothing or onto itself";
    }
  }
  for (const Step& step : plan.steps) {
    const bool sends = step.to != Step::kNobody, receives = step.from != Step::kNobody;
    const bool empty = (sends && step.sent.count == 0) || (receives && step.received.count == 0);
    if ((!sends && !receives) || empty != (op == Op::kBarrier)) {
      return "a step of nothing";
    }
    if (sends && receives && overlap(step.sent, step.received)) {
      return "a step that writes what it sends";
    }
  }
  return "";
}

enum class Trials { kAll, kSome, kFew };

Trials trials_for(int world) { return world <= 5 ? Trials::kAll : world <= 9 ? Trials::kSome : Trials::kFew; }

std::vector<Delivery> deliveries(int world, Trials trials) {
  if (trials == Trials::kFew) {
    return {{Links::kBuffered, Turns::kInTurn, 0},
            {Links::kRendezvous, Turns::kRandom, 1},
            {Links::kLate, Turns::kOneBehind, world / 2}};
  }
  std::vector<Delivery> all;
  for (const Links links : {Links::kBuffered, Links::kRendezvous, Links::kLate}) {
    all.push_back({links, Turns::kInTurn, 0});
    all.push_back({links, Turns::kRandom, 1});
    all.push_back({links, Turns::kOneAhead, world - 1});
    all.push_back({links, Turns::kOneBehind, 0});
    if (trials == Trials::kAll) {
      all.push_back({links, Turns::kRandom, 2});
      all.push_back({links, Turns::kOneAhead, 0});
      all.push_back({links, Turns::kOneBehind, world / 2});
    }
  }
  return all;
}

// Runs them in all those deliveries: the result must be right, and the same bits in each.
std::string run(const CallShape& shape, const std::vector<Plan>& plans, Trials trials) {
  const int world = static_cast<int>(plans.size());
  for (const Plan& plan : plans) {
    if (const std::string fault = fault_of(plan, shape.op); !fault.empty()) {
      return fault;
    }
  }
  const std::vector<Memory> before = memories_for(shape, world);
  std::vector<Memory> first;
  for (const Delivery& delivery : deliveries(world, trials)) {
    std::vector<Memory> after = before;
    const std::string failure = simulate(plans, after, delivery).failure;
    const std::string wrong = !failure.empty() ? failure : first.empty() ? difference(shape, before, after) : "";
    const std::string where = concat(" (links ", static_cast<int>(delivery.links), ", turns ",
                                     static_cast<int>(delivery.turns), " ", delivery.chosen, ")");
    if (!wrong.empty()) {
      return wrong + where;
    }
    for (int rank = 0; rank < world; ++rank) {
      const bool settled = first.empty() || same(first[rank].of(Buffer::kOutput), after[rank].of(Buffer::kOutput));
      if (!settled || !same(before[rank].of(Buffer::kInput), after[rank].of(Buffer::kInput))) {
        return concat("rank ", rank, ": another result, or a changed input", where);
      }
    }
    first = std::move(after);
  }
  return "";
}

Outcome outcome_of(const CallShape& shape, const std::vector<Plan>& plans) {
  std::vector<Memory> memories = memories_for(shape, static_cast<int>(plans.size()));
  return simulate(plans, memories, {});
}

// ---- every operation ------------------------------------------------------------------------------------------------

std::vector<int> roots(Op op, int world, Trials trials) {
  if (!has_root(op)) {
    return {0};
  }
  std::vector<int> all;
  for (int root = 0; root < world; root += trials == Trials::kFew ? std::max(world - 1, 1) : 1) {
    all.push_back(root);
  }
  return all;
}

class EveryOp : public testing::TestWithParam<Op> {
 protected:
  void check(int world, std::int64_t count, Trials trials) {
    for (const int root : roots(GetParam(), world, trials)) {
      const CallShape shape = shape_of(GetParam(), count, root);
      EXPECT_EQ(run(shape, plans_for(shape, world), trials), "") << describe(shape, world);
    }
  }
};

TEST_P(EveryOp, IsRightInEveryDeliveryForFewElements) {
  for (const int world : kWorlds) {
    for (const std::int64_t count : {0, 1, world - 1, world}) {
      check(world, count, trials_for(world));
    }
  }
}

TEST_P(EveryOp, IsRightForACountThatDoesNotDivide) {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    check(world, 1009, world <= 5 ? Trials::kSome : Trials::kFew);
  }
}

TEST_P(EveryOp, IsRightAboveTheLimitsOfTheTable) {
  const std::int64_t limit_bytes = GetParam() == Op::kBroadcast   ? 512 * 1024
                                   : GetParam() == Op::kAllReduce ? 256 * 1024
                                                                  : 64 * 1024;
  for (const int world : {1, 2, 3, 5, 8}) {
    check(world, limit_bytes / kElementBytes + 3, Trials::kFew);
  }
}

TEST_P(EveryOp, IsOnlyCopiesInAWorldOfOne) {
  for (const std::int64_t count : {0, 5, 100'000}) {
    const CallShape shape = shape_of(GetParam(), count);
    const Plan plan = make_plan(shape, 0, 1);
    EXPECT_TRUE(plan.steps.empty());
    EXPECT_EQ(plan.scratch, 0);
    EXPECT_EQ(plan.copies.size(), memories_for(shape, 1)[0].of(Buffer::kInput).empty() ? 0 : 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Plan, EveryOp, testing::ValuesIn(kOps),
                         [](const auto& tested) { return std::string(name(tested.param)); });

// The table gives rings and chains no fewer elements than ranks; they would be right for those as well.
TEST(Plan, RingsAndChainsAreRightForFewElements) {
  struct {
    Op op;
    void (*way)(Draft&);
  } const ways[] = {{Op::kBroadcast, broadcast_by_chain},
                    {Op::kAllReduce, all_reduce_by_ring},
                    {Op::kReduce, reduce_by_ring},
                    {Op::kAllGather, all_gather_by_ring},
                    {Op::kReduceScatter, reduce_scatter_by_ring}};
  for (const auto& [op, way] : ways) {
    for (const int world : kWorlds) {
      for (const std::int64_t count : {0, 1, world - 1, world, 2 * world + 1}) {
        for (const int root : roots(op, world, Trials::kAll)) {
          const CallShape shape = shape_of(op, count, root);
          EXPECT_EQ(run(shape, plans_by(way, shape, world), trials_for(world)), "") << describe(shape, world);
        }
      }
    }
  }
}

// ---- all-to-all of slices that differ -------------------------------------------------------------------------------

std::int64_t uneven_count(int from, int to) { return (from * 7 + to * 3) % 5; }  // every fifth is 0

UnevenCounts uneven_counts(int rank, int world) {
  UnevenCounts counts;
  for (int other = 0; other < world; ++other) {
    counts.sent.push_back(uneven_count(rank, other));
    counts.received.push_back(uneven_count(other, rank));
  }
  return counts;
}

TEST(Plan, UnevenSlicesGoToTheirPlaces) {
  for (const int world : kWorlds) {
    std::vector<Plan> plans;
    std::vector<Memory> memories(world);
    std::vector<std::vector<Element>> right(world);
    for (int rank = 0; rank < world; ++rank) {
      plans.push_back(make_plan(shape_of(Op::kAllToAll, CallShape::kUneven), rank, world, uneven_counts(rank, world)));
      for (int to = 0; to < world; ++to) {
        const auto slice = random_elements(uneven_count(rank, to), (rank * 100 + to) * 100);
        auto& input = memories[rank].of(Buffer::kInput);
        input.insert(input.end(), slice.begin(), slice.end());
        right[to].insert(right[to].end(), slice.begin(), slice.end());  // ranks come in their order
      }
      EXPECT_EQ(fault_of(plans[rank], Op::kAllToAll), "");
    }
    for (const Delivery& delivery : deliveries(world, Trials::kAll)) {
      std::vector<Memory> after = memories;
      for (int rank = 0; rank < world; ++rank) {
        after[rank].of(Buffer::kOutput).resize(right[rank].size());
      }
      EXPECT_EQ(simulate(plans, after, delivery).failure, "");
      for (int rank = 0; rank < world; ++rank) {
        EXPECT_TRUE(same(after[rank].of(Buffer::kOutput), right[rank])) << "rank " << rank << " of " << world;
      }
    }
  }
}

// ---- how long it takes ----------------------------------------------------------------------------------------------

TEST(Plan, TreesTakeTheLogarithmOfTheWorldInRounds) {
  for (const int world : kWorlds) {
    for (const Op op : {Op::kBarrier, Op::kBroadcast, Op::kReduce}) {
      for (const int root : roots(op, world, Trials::kAll)) {
        const CallShape shape = shape_of(op, op == Op::kBarrier ? 0 : 3, root);
        const auto plans = plans_for(shape, world);
        EXPECT_LE(outcome_of(shape, plans).rounds, ceil_log2(world)) << describe(shape, world);
        const auto longest = std::ranges::max(plans, {}, [](const Plan& plan) { return plan.steps.size(); });
        EXPECT_EQ(longest.steps.size(), ceil_log2(world)) << describe(shape, world);
      }
    }
  }
}

TEST(Plan, DoublingTakesTheLogarithmAndTwoMoreWhereRanksStandAside) {
  for (const int world : kWorlds) {
    const CallShape shape = shape_of(Op::kAllReduce, 3);
    const bool power = std::has_single_bit(static_cast<unsigned>(world));
    const int rounds = power ? ceil_log2(world) : ceil_log2(world) - 1 + 2;
    EXPECT_EQ(outcome_of(shape, plans_for(shape, world)).rounds, rounds) << describe(shape, world);
  }
}

TEST(Plan, DisseminationSendsEachBlockOnceToEachRank) {
  for (const int world : kWorlds) {
    const CallShape shape = shape_of(Op::kAllGather, 3);
    const Outcome outcome = outcome_of(shape, plans_for(shape, world));
    EXPECT_LE(outcome.rounds, 2 * ceil_log2(world)) << describe(shape, world);
    for (const std::int64_t sent : outcome.sent_elements) {
      EXPECT_EQ(sent, 3 * (world - 1));
    }
  }
}

TEST(Plan, RingAllReduceSendsTwiceWhatARankDoesNotKeep) {
  for (const int world : kWorlds) {
    const CallShape shape = shape_of(Op::kAllReduce, 1009);
    const Outcome outcome = outcome_of(shape, plans_by(all_reduce_by_ring, shape, world));
    EXPECT_EQ(outcome.rounds, 2 * (world - 1));
    for (const std::int64_t sent : outcome.sent_elements) {
      EXPECT_NEAR(sent, 2.0 * (world - 1) / world * shape.count, 2) << describe(shape, world);
    }
  }
}

TEST(Plan, OtherRingsSendTheLeastThereIs) {
  for (const int world : kWorlds) {
    const std::vector<std::int64_t> least(world, (world - 1) * 7);
    const CallShape gather = shape_of(Op::kAllGather, 7), scatter = shape_of(Op::kReduceScatter, 7);
    for (const Outcome& outcome : {outcome_of(gather, plans_by(all_gather_by_ring, gather, world)),
                                   outcome_of(scatter, plans_by(reduce_scatter_by_ring, scatter, world))}) {
      EXPECT_EQ(outcome.rounds, world - 1);
      EXPECT_EQ(outcome.sent_elements, least);
    }
  }
}

TEST(Plan, AChainIsFullOfPieces) {
  for (const int world : {3, 5}) {
    const CallShape shape = shape_of(Op::kBroadcast, 3 * kChainPieceBytes / kElementBytes, 1);
    EXPECT_EQ(outcome_of(shape, plans_for(shape, world)).rounds, 3 + world - 2);
  }
}

// ---- a reduction has one order --------------------------------------------------------------------------------------

TEST(Plan, TheRootDoesNotChangeWhichSumsATreeForms) {
  for (const int world : kWorlds) {
    std::vector<Element> first;
    for (int root = 0; root < world; ++root) {
      const CallShape shape = shape_of(Op::kReduce, 50, root);
      std::vector<Memory> memories = memories_for(shape, world);
      ASSERT_EQ(simulate(plans_for(shape, world), memories, {}).failure, "");
      const std::vector<Element>& output = memories[root].of(Buffer::kOutput);
      first = first.empty() ? output : first;
      for (std::size_t i = 0; i < output.size(); ++i) {
        EXPECT_EQ(output[i].value, first[i].value) << describe(shape, world);  // a + b is b + a
      }
    }
  }
}

// ---- as text, and mistakes ------------------------------------------------------------------------------------------

TEST(Plan, PrintsOneLineAStep) {
  const CallShape ring{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, 40'000};
  EXPECT_EQ(to_string(make_plan(ring, 0, 2)),
            "to 1 output[20000,40000) | from 1 output[0,20000) reduce last\n"
            "to 1 output[0,20000) | from 1 output[20000,40000)\n");
  EXPECT_EQ(to_string(make_plan(shape_of(Op::kAllGather, 4), 1, 3)),
            "copy input[0,4) to output[4,8)\n"
            "to 0 output[4,8) | from 2 output[8,12)\n"
            "to 2 output[4,8) | from 0 output[0,4)\n");
  EXPECT_EQ(to_string(make_plan(shape_of(Op::kBarrier, 0), 0, 3)),
            "to 1 nothing | from 2 nothing\n"
            "to 2 nothing | from 1 nothing\n");
  EXPECT_EQ(to_string(make_plan(shape_of(Op::kReduce, 7, 2), 0, 3)),
            "copy output[0,7) to scratch[0,7)\n"
            "from 1 scratch[0,7) reduce\n"
            "to 2 scratch[0,7)\n");
}

TEST(Plan, PartnersOfDoublingFormTheSumInTheSameOrder) {
  const CallShape shape = shape_of(Op::kAllReduce, 5);
  EXPECT_EQ(to_string(make_plan(shape, 0, 2)),
            "copy output[0,5) to scratch[0,5)\n"
            "to 1 scratch[0,5) | from 1 output[0,5) reduce last\n");
  EXPECT_EQ(to_string(make_plan(shape, 1, 2)),
            "copy output[0,5) to scratch[0,5)\n"
            "to 0 scratch[0,5) | from 0 output[0,5)\n"
            "to 1 scratch[0,5) | from 1 output[0,5) reduce last\n");
}

TEST(Plan, RefusesRanksAndCountsThatThereAreNot) {
  EXPECT_THROW(make_plan(shape_of(Op::kBarrier, 0), 3, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kBarrier, 0), -1, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kBroadcast, 1, 3), 0, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kAllReduce, -2), 0, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kAllReduce, CallShape::kUneven), 0, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kAllToAll, CallShape::kUneven), 0, 3), InternalError);
  EXPECT_THROW(make_plan(shape_of(Op::kAllToAll, CallShape::kUneven), 0, 3, {{1, 2, 3}, {1, 2}}), InternalError);
}

}  // namespace
}  // namespace downpour::collective
