#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace downpour::backends {

// A gradient as the layout sees it. Gradients of different kinds (dtype, device) do not share a bucket.
struct GradientSize {
  std::int64_t bytes = 0;
  int kind = 0;
};

// Which gradients lie together, in the order in which their buckets are reduced. A pure function, the same on every rank.
// `order`: all indices of `sizes`, as their gradients are expected to come. A bucket is full when the next gradient would take it beyond
// its limit, `first_bytes` for the first, `bytes` for the others; a larger gradient has one of its own.
std::vector<std::vector<std::size_t>> lay_out_buckets(const std::vector<GradientSize>& sizes,
                                                      const std::vector<std::size_t>& order, std::int64_t first_bytes,
                                                      std::int64_t bytes);

}  // namespace downpour::backends
