#include "csrc/collective/algorithm_table.h"

#include <limits>

#include "csrc/base/bytes.h"
#include "csrc/base/checksum.h"

namespace downpour::collective {
namespace {

struct Row {  // NOLINT(clang-analyzer-optin.performance.Padding): fields in the order in which a row is read
  Op op;
  std::int32_t smallest_world;
  std::int64_t largest_bytes;
  Algorithm algorithm;
};

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kAnyBytes = std::numeric_limits<std::int64_t>::max();

// A message costs some 30 us over TCP and a byte about 1 ns, so one message weighs as much as 30 KB: below about twice
// that the number of steps one after another decides, above it the bytes. What a row adds to that:
// - all-reduce: doubling sends log2(world) times everything, a ring not twice everything but in 2 (world - 1) steps; in
//   large groups its steps cost more than the bytes it saves for longer.
// - broadcast, reduce: with two ranks a tree is one message, which nothing beats. A chain must fill before it flows.
// - all-gather, reduce-scatter: both ways send the same bytes; a ring talks to neighbours only, which is one crossing a
//   link at a time where several ranks share a machine, but each step waits for the one before.
// - gather, scatter: the root's link carries everything in any case; a tree would carry parts of it twice.
constexpr Row kTable[] = {
    {Op::kBarrier, 1, kAnyBytes, Algorithm::kDissemination},
    {Op::kBroadcast, 9, 512 * kKiB, Algorithm::kBinomialTree},
    {Op::kBroadcast, 3, 256 * kKiB, Algorithm::kBinomialTree},
    {Op::kBroadcast, 3, kAnyBytes, Algorithm::kPipelinedChain},
    {Op::kBroadcast, 1, kAnyBytes, Algorithm::kBinomialTree},
    {Op::kAllReduce, 8, 256 * kKiB, Algorithm::kRecursiveDoubling},
    {Op::kAllReduce, 1, 64 * kKiB, Algorithm::kRecursiveDoubling},
    {Op::kAllReduce, 1, kAnyBytes, Algorithm::kRing},
    {Op::kReduce, 3, 64 * kKiB, Algorithm::kBinomialTree},
    {Op::kReduce, 3, kAnyBytes, Algorithm::kRing},
    {Op::kReduce, 1, kAnyBytes, Algorithm::kBinomialTree},
    {Op::kAllGather, 1, 64 * kKiB, Algorithm::kDissemination},
    {Op::kAllGather, 1, kAnyBytes, Algorithm::kRing},
    {Op::kGather, 1, kAnyBytes, Algorithm::kLinear},
    {Op::kScatter, 1, kAnyBytes, Algorithm::kLinear},
    {Op::kReduceScatter, 1, 64 * kKiB, Algorithm::kLinear},
    {Op::kReduceScatter, 1, kAnyBytes, Algorithm::kRing},
    {Op::kAllToAll, 1, kAnyBytes, Algorithm::kLinear},
};

}  // namespace

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kLinear: return "linear";
    case Algorithm::kBinomialTree: return "binomial tree";
    case Algorithm::kRecursiveDoubling: return "recursive doubling";
    case Algorithm::kRing: return "ring";
    case Algorithm::kPipelinedChain: return "pipelined chain";
    case Algorithm::kDissemination: return "dissemination";
  }
  return "no algorithm";
}

Algorithm algorithm_for(Op op, int world, std::int64_t bytes) {
  for (const Row& row : kTable) {
    if (row.op == op && world >= row.smallest_world && bytes <= row.largest_bytes) {
      return row.algorithm;
    }
  }
  DOWNPOUR_INTERNAL_ASSERT(false, "no algorithm for ", name(op), " of ", bytes, " bytes in a world of ", world);
}

std::uint64_t algorithm_table_hash() {
  Writer rows;
  rows.put(kChainPieceBytes);
  for (const Row& row : kTable) {
    rows.put(row.op).put(row.smallest_world).put(row.largest_bytes).put(row.algorithm);
  }
  return checksum(rows.bytes());
}

}  // namespace downpour::collective
