#include "csrc/collective/plan_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/collective/inproc_ranks.h"
#include "tests/collective/samples.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

class PlanRuns : public testing::TestWithParam<int> {};

template <typename T>
bool all_right(InprocRanks& ranks, std::deque<RankCall<T>>& calls, std::uint64_t number, std::uint32_t seed) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ranks.rank(rank).begin(calls[static_cast<std::size_t>(rank)].call(), number);
  }
  ranks.deliver(seed);
  bool right = true;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    right = right && ranks.rank(rank).done() && ranks.rank(rank).error().empty() &&
            calls[static_cast<std::size_t>(rank)].is_right();
  }
  return right;
}

TEST_P(PlanRuns, EveryOperationOverEverySizeIsRight) {
  InprocRanks ranks(GetParam());
  std::uint64_t number = 0;
  for (const Op op : all_ops()) {
    for (const std::int64_t count : {0, 1, 7, 1009, 40'009, 300'007}) {
      for (const int root : {0, ranks.size() - 1}) {
        std::deque<RankCall<float>> calls;
        for (int rank = 0; rank < ranks.size(); ++rank) {
          calls.emplace_back(op, ReduceOp::kSum, root, count, rank, ranks.size());
        }
        EXPECT_TRUE(all_right(ranks, calls, number, static_cast<std::uint32_t>(number)))
            << to_string(calls.front().call().shape);
        ++number;
      }
    }
  }
}

TEST_P(PlanRuns, EveryReductionIsRight) {
  InprocRanks ranks(GetParam());
  std::uint64_t number = 0;
  for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
    for (int value = 1; value <= static_cast<int>(kLastReduceOp); ++value) {
      const auto reduce = static_cast<ReduceOp>(value);
      std::deque<RankCall<std::int64_t>> integers;
      std::deque<RankCall<double>> doubles;
      for (int rank = 0; rank < ranks.size(); ++rank) {
        integers.emplace_back(op, reduce, 0, 20'011, rank, ranks.size());
        doubles.emplace_back(op, reduce, 0, 20'011, rank, ranks.size());
      }
      if (is_supported(ElementType::kInt64, reduce)) {
        EXPECT_TRUE(all_right(ranks, integers, number++, 1)) << to_string(integers.front().call().shape);
      }
      if (is_supported(ElementType::kFloat64, reduce)) {
        EXPECT_TRUE(all_right(ranks, doubles, number++, 2)) << to_string(doubles.front().call().shape);
      }
    }
  }
}

TEST_P(PlanRuns, SlicesOfDifferentSizesAreExchanged) {
  InprocRanks ranks(GetParam());
  std::deque<RankCall<std::int32_t>> calls;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    calls.emplace_back(Op::kAllToAll, ReduceOp::kSum, 0, CallShape::kUneven, rank, ranks.size());
  }
  EXPECT_TRUE(all_right(ranks, calls, 0, 3));
}

INSTANTIATE_TEST_SUITE_P(World, PlanRuns, testing::Values(1, 2, 3, 4, 7));

TEST(PlanRunEndings, ARankThatIsAheadWaitsWithoutLoss) {
  InprocRanks ranks(2);
  RankCall<float> first0(Op::kAllReduce, ReduceOp::kSum, 0, 700'001, 0, 2);
  RankCall<float> first1(Op::kAllReduce, ReduceOp::kSum, 0, 700'001, 1, 2);
  ranks.rank(0).begin(first0.call(), 0);
  ranks.deliver(1);
  EXPECT_FALSE(ranks.rank(0).done());
  EXPECT_EQ(ranks.rank(0).waits_for(), 1);
  ranks.rank(1).begin(first1.call(), 0);
  ranks.deliver(2);
  EXPECT_TRUE(first0.is_right());
  EXPECT_TRUE(first1.is_right());
}

TEST(PlanRunEndings, RanksInDifferentCallsNameBoth) {
  InprocRanks ranks(2);
  RankCall<float> mine(Op::kAllReduce, ReduceOp::kSum, 0, 10, 0, 2);
  RankCall<float> theirs(Op::kAllReduce, ReduceOp::kSum, 0, 11, 1, 2);
  ranks.rank(0).begin(mine.call(), 4);
  ranks.rank(1).begin(theirs.call(), 4);
  ranks.deliver(1);
  EXPECT_THAT(ranks.rank(0).error(),
              HasSubstr("rank 1 all_reduce of 11 float, sum (call 4), this rank all_reduce of 10"));
  EXPECT_THAT(ranks.rank(1).error(),
              HasSubstr("rank 0 all_reduce of 10 float, sum (call 4), this rank all_reduce of 11"));
  EXPECT_TRUE(mine.is_untouched());
}

// What is on its way is copied when a call ends, well or not: its memory is the caller's again.
TEST(PlanRunEndings, OfACallThatIsDroppedNoLaterMemoryIsSent) {
  InprocRanks ranks(2);
  std::vector<float> root(100, 3), other(100, 0);
  const CallShape shape{Op::kBroadcast, ElementType::kFloat32, ReduceOp::kSum, 0, 100};
  ranks.rank(0).begin({shape, {}, {bytes_of(root)}}, 0);
  ranks.rank(0).drop();
  std::ranges::fill(root, 9.f);
  ranks.rank(1).begin({shape, {}, {bytes_of(other)}}, 0);
  ranks.deliver(1);
  EXPECT_EQ(other, std::vector<float>(100, 3));
}

TEST(PlanRunEndings, ARankMayLeaveWhenItsPartIsDone) {
  InprocRanks ranks(2);
  RankCall<float> root(Op::kBroadcast, ReduceOp::kSum, 0, 1009, 0, 2);
  RankCall<float> other(Op::kBroadcast, ReduceOp::kSum, 0, 1009, 1, 2);
  ranks.rank(0).begin(root.call(), 0);
  EXPECT_TRUE(ranks.rank(0).done());
  ranks.rank(0).links().close();
  ranks.network().deliver_all();
  ranks.rank(1).begin(other.call(), 0);
  EXPECT_TRUE(other.is_right());
  ranks.rank(1).begin(other.call(), 1);
  EXPECT_EQ(ranks.rank(1).error(), "rank 0 has ended its group");
}

TEST(LinksEndings, ALostRankIsNamed) {
  InprocRanks ranks(3);
  ranks.network().cut(0);  // between ranks 0 and 1
  EXPECT_THAT(ranks.rank(0).broken(), HasSubstr("rank 1 is lost"));
  EXPECT_THAT(ranks.rank(1).broken(), HasSubstr("rank 0 is lost"));
  EXPECT_EQ(ranks.rank(2).broken(), "");
}

TEST(LinksEndings, ARankThatGivesUpTellsTheOthersWhy) {
  InprocRanks ranks(3);
  ranks.rank(1).links().abort("its disk is full");
  ranks.network().deliver_all();
  EXPECT_EQ(ranks.rank(0).broken(), "rank 1 gave up: its disk is full");
  EXPECT_EQ(ranks.rank(2).broken(), "rank 1 gave up: its disk is full");
  EXPECT_EQ(ranks.rank(1).broken(), "");
}

TEST(LinksEndings, TwoProcessesThatClaimOneRankAreToldApart) {
  InprocRanks ranks(2);
  InprocRank second(ranks.network(), 1, 2, "the second rank 1");
  second.connect(ranks.network());
  ranks.network().deliver_all();
  EXPECT_THAT(second.broken(), HasSubstr("rank 1 is taken: two processes claim one rank"));
  EXPECT_EQ(ranks.rank(0).broken(), "");
  second.links().close();
}

TEST(LinksEndings, AStrangerIsRefusedAndToldWhy) {
  transport::InprocNetwork network;
  InprocRank first(network, 0, 2);
  const auto reason = [&](std::uint64_t group, transport::Role role, int rank) {
    transport::Hello hello;
    hello.job = group;
    hello.role = role;
    hello.rank = rank;
    const transport::Admission admission = first.links().admit(hello, {});
    EXPECT_FALSE(admission.accepted);
    return admission.reason;
  };
  using transport::Role;
  EXPECT_THAT(reason(78, Role::kRank, 1), HasSubstr("another group"));
  EXPECT_THAT(reason(77, Role::kRank, 2), HasSubstr("expected a rank from 1 to 1, found rank 2"));
  EXPECT_THAT(reason(77, Role::kWorker, 1), HasSubstr("found worker 1"));
  EXPECT_THAT(reason(77, Role::kRank, 1), HasSubstr("another build of Downpour"));
}

}  // namespace
}  // namespace downpour::collective
