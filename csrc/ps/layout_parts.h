#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/ps/partition.h"

namespace downpour::ps {

// A piece of one slice: `size_bytes` bytes from byte `begin_bytes` of it.
struct SlicePart {
  std::size_t slice = 0;
  std::int64_t begin_bytes = 0;
  std::int64_t size_bytes = 0;
};

// Calls use(SlicePart) for each slice that has bytes in [begin, end) of the shard's buffer, in order; what lies between slices
// is passed over.
template <typename Use>
void for_each_part(const ShardLayout& layout, std::int64_t begin, std::int64_t end, Use&& use) {
  const auto first = std::partition_point(layout.slices.begin(), layout.slices.end(), [&](const Slice& slice) {
    return slice.offset_bytes + slice.size_bytes() <= begin;
  });
  for (auto slice = first; slice != layout.slices.end() && slice->offset_bytes < end; ++slice) {
    const std::int64_t from = std::max(begin, slice->offset_bytes);
    const std::int64_t to = std::min(end, slice->offset_bytes + slice->size_bytes());
    use(SlicePart{static_cast<std::size_t>(slice - layout.slices.begin()), from - slice->offset_bytes, to - from});
  }
}

}  // namespace downpour::ps
