#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/collective/call.h"

// What one rank does in a collective over links, as data: generated, printed and checked without a network; the runner
// (plan_run.h) only obeys it.
namespace downpour::collective {

enum class Buffer : std::uint8_t { kInput, kOutput, kScratch };

// `count` elements from element `begin` on of one of the call's buffers. Lists of tensors count as one buffer, one
// after the other.
struct Slice {
  Buffer buffer = Buffer::kOutput;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool operator==(const Slice&) const = default;
};

enum class Arrival : std::uint8_t {
  kCopy,        // what arrives replaces the slice
  kReduce,      // slice = slice op what arrives
  kReduceLast,  // the same, and the result is complete: an average is divided here
};

// Sends and receives at once, then the next step begins. The k-th slice that a rank sends to another is the k-th that
// the other receives from it, of as many elements. A slice that is sent does not change before its receiver has taken
// it: this step and all later ones leave it alone, unless what a later one receives was made from it.
// to, from: a rank, or kNobody. Both this rank itself: nothing leaves it, `sent` arrives in `received` at once.
// Slices are empty only in a barrier, whose messages say all by coming.
struct Step {
  static constexpr int kNobody = -1;
  int to = kNobody;
  Slice sent;
  int from = kNobody;
  Slice received;
  Arrival arrival = Arrival::kCopy;
  bool operator==(const Step&) const = default;
};

// Before the first step `copies` are done in their order, within this rank.
struct Copy {
  Slice from;
  Slice to;
  bool operator==(const Copy&) const = default;
};
struct Plan {
  std::vector<Copy> copies;
  std::vector<Step> steps;
  std::int64_t scratch = 0;  // elements
};

// Elements of each slice of an uneven all-to-all, in rank order, as this rank has them.
struct UnevenCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

// How a call of that shape is done by `world` ranks that have links only: a pure function, from the table in
// algorithm_table.h, so that the ranks' plans fit each other. Buffers as in call.h; only the outputs that the call
// names are changed, partial results of a rank that keeps none lie in scratch. The reduction of an element is formed in
// one order, given op, world, count and root, and is the same bits on every rank that gets it, whatever the operation
// makes of two NaNs or zeros. `uneven`: only for kUneven.
// Errors: internal assert for a rank or root outside the world, for uneven counts that are not one a rank.
Plan make_plan(const CallShape& shape, int rank, int world, const UnevenCounts& uneven = {});

// One line a copy, "copy input[0,4) to output[4,8)", and a step, "to 1 output[0,512) | from 3 output[512,1024) reduce".
std::string to_string(const Plan& plan);

}  // namespace downpour::collective
