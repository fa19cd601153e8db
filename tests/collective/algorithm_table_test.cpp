#include "csrc/collective/algorithm_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace downpour::collective {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(AlgorithmTable, HasARowForEveryCall) {
  for (int op = 1; op <= static_cast<int>(kLastOp); ++op) {
    for (int world = 1; world <= 64; ++world) {
      for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, 100 * kKiB, kHuge}) {
        EXPECT_NE(name(algorithm_for(static_cast<Op>(op), world, bytes)), "no algorithm");
      }
    }
  }
}

TEST(AlgorithmTable, SmallMessagesTakeFewStepsAndLargeOnesFewBytes) {
  EXPECT_EQ(algorithm_for(Op::kAllReduce, 4, 64 * kKiB), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(algorithm_for(Op::kAllReduce, 4, 64 * kKiB + 1), Algorithm::kRing);
  EXPECT_EQ(algorithm_for(Op::kAllGather, 4, 64 * kKiB), Algorithm::kDissemination);
  EXPECT_EQ(algorithm_for(Op::kAllGather, 4, 64 * kKiB + 1), Algorithm::kRing);
  EXPECT_EQ(algorithm_for(Op::kBroadcast, 4, 256 * kKiB), Algorithm::kBinomialTree);
  EXPECT_EQ(algorithm_for(Op::kBroadcast, 4, 256 * kKiB + 1), Algorithm::kPipelinedChain);
  EXPECT_EQ(algorithm_for(Op::kReduceScatter, 4, 64 * kKiB), Algorithm::kLinear);
  EXPECT_EQ(algorithm_for(Op::kReduceScatter, 4, 64 * kKiB + 1), Algorithm::kRing);
}

TEST(AlgorithmTable, TheWorldCountsToo) {
  EXPECT_EQ(algorithm_for(Op::kAllReduce, 7, 256 * kKiB), Algorithm::kRing);
  EXPECT_EQ(algorithm_for(Op::kAllReduce, 8, 256 * kKiB), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(algorithm_for(Op::kBroadcast, 2, kHuge), Algorithm::kBinomialTree);
  EXPECT_EQ(algorithm_for(Op::kReduce, 2, kHuge), Algorithm::kBinomialTree);
  EXPECT_EQ(algorithm_for(Op::kReduce, 3, kHuge), Algorithm::kRing);
}

TEST(AlgorithmTable, RefusesAnOperationThatIsNone) {
  EXPECT_THROW(algorithm_for(static_cast<Op>(99), 2, 1), InternalError);
}

TEST(AlgorithmTable, EveryAlgorithmHasItsName) {
  std::set<std::string_view> names;
  for (int algorithm = 1; algorithm <= static_cast<int>(Algorithm::kDissemination); ++algorithm) {
    names.insert(name(static_cast<Algorithm>(algorithm)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Algorithm::kDissemination));
  EXPECT_FALSE(names.contains("no algorithm"));
}

// Ranks of different builds compare it, so it is the same on every machine. Whoever changes the table writes the new
// one here.
TEST(AlgorithmTable, ItsHashIsThatOfItsRows) { EXPECT_EQ(algorithm_table_hash(), 13175907527544473728U); }

}  // namespace
}  // namespace downpour::collective
