#pragma once

#include <cstdint>
#include <span>

#include "csrc/collective/element.h"

namespace downpour::collective {

// One reduction of a group. `divisor`: what kAverage divides the sum by, once, before it is rounded to the element
// type; 1 leaves the sum (a partial one, or every other operation).
struct Reduction {
  ElementType type = ElementType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t divisor = 1;
};

// target[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., divided. The order is that of `sources`, so the
// same sources in the same order give the same bits on every machine and instruction set; a NaN wins over every number
// in minimum and maximum, and one that is computed is always the same quiet NaN; integers wrap around. float16 and
// bfloat16 are computed in float32 and rounded once, at the end, to nearest even.
// Shapes: `count` elements at target and at each source, any alignment. target may be one of the sources itself, not
// overlap one otherwise. At least one source: with one the elements are copied (and divided).
// Threads: any. Blocks: never. Errors: Error for a pair that is not supported; internal assert for no source, a count
// below 0, a divisor < 1 or one other than 1 without kAverage.
void reduce(const Reduction& reduction, void* target, std::span<const void* const> sources, std::int64_t count);

// The same result in every target: reads each source once and writes all targets in one pass over memory, for ranks
// that share it. Each target may be one of the sources.
void reduce_to_all(const Reduction& reduction, std::span<void* const> targets, std::span<const void* const> sources,
                   std::int64_t count);

}  // namespace downpour::collective
