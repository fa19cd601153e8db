#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/collective/element.h"

namespace downpour::collective {

enum class Op : std::uint8_t {
  kBarrier = 1,
  kBroadcast,      // the root's output goes to every rank's output
  kAllReduce,      // every output becomes the reduction of all outputs
  kReduce,         // the root's output does; the others' stay
  kAllGather,      // output = the inputs of rank 0, 1, ... one after the other
  kGather,         // the same on the root; the others have no output
  kScatter,        // rank r's output = slice r of the root's input; the others have no input
  kReduceScatter,  // rank r's output = slice r of the reduction of all inputs
  kAllToAll,       // slice s of rank r's output = slice r of rank s's input
};
inline constexpr Op kLastOp = Op::kAllToAll;
std::string_view name(Op op);  // "all_reduce"

// What all ranks of a group must have in common in one call. A value; compared at the start of every call, so that ranks which
// call different things hear of it instead of exchanging garbage.
// Shapes: `count` elements on each rank: of the output of broadcast, all-reduce, reduce, scatter and reduce-scatter, of the input
// of all-gather and gather; in all-to-all of each slice, and kUneven where slices differ.
struct CallShape {
  static constexpr std::int64_t kUneven = -1;
  Op op = Op::kBarrier;
  ElementType type = ElementType::kOpaque8;
  ReduceOp reduce = ReduceOp::kSum;  // only of those that reduce
  std::int32_t root = 0;             // only of those that have one
  std::int64_t count = 0;
  bool operator==(const CallShape&) const = default;
};
// "all_reduce of 1024 float, sum"; "broadcast of 3 long from rank 1"
std::string to_string(const CallShape& shape);

// One collective call of one rank. A list of tensors stays a list: a piece of memory each, one for every rank, in rank order.
// Owns nothing: the memory must live, and stay unchanged by others, until the call is done.
// Shapes: contiguous pieces of whole elements. inputs and outputs are disjoint, but for a piece that is handed in at its own place
// in both (in-place all-gather, reduce-scatter).
struct Call {
  CallShape shape;
  std::vector<Bytes> inputs;
  std::vector<MutableBytes> outputs;
};
// Errors: Error naming the call, the buffer, expected against found bytes; for an operation the type has not; for a root outside
// the group.
void check_call(const Call& call, int rank, int world);

}  // namespace downpour::collective
