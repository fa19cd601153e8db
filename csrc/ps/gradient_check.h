#pragma once

#include <cstdint>

#include "csrc/base/dtype.h"

namespace downpour::ps {

// What a pass over a gradient finds; {} of no elements at all.
struct GradientCheck {
  bool finite = true;
  // Sum of squares, accumulated in double; unspecified when not finite. Infinite only where the sum itself is beyond a
  // double (float64 elements above 1e154). Its last bits depend on the instruction set.
  double squared_norm = 0;

  GradientCheck& operator+=(const GradientCheck& other) {
    finite &= other.finite;
    squared_norm += other.squared_norm;
    return *this;
  }
};

// One pass at memory speed (Highway, run-time dispatch). Shapes: `count` elements of `dtype`, any alignment.
// Threads: any.
GradientCheck check_gradient(Dtype dtype, std::int64_t count, const void* gradient);

// destination <- source and the check of source, in one pass; for the sender's encode. They do not overlap.
GradientCheck copy_and_check(Dtype dtype, std::int64_t count, const void* source, void* destination);

}  // namespace downpour::ps
