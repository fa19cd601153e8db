#include "csrc/ps/push_assembly.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/ps/layout_parts.h"

namespace downpour::ps {

PushAssembly::PushAssembly(const ShardLayout& layout) : layout_(layout), arrived_bytes_(layout.slices.size()) {}

void PushAssembly::begin(std::uint64_t sequence, std::uint32_t slot) {
  open_ = true;
  sequence_ = sequence;
  slot_ = slot;
  std::fill(arrived_bytes_.begin(), arrived_bytes_.end(), 0);
}

void PushAssembly::check_same(std::uint64_t sequence, std::uint32_t slot) const {
  DOWNPOUR_CHECK_AS(ProtocolError, sequence == sequence_ && slot == slot_, "push ", sequence, " in slot ", slot,
                    " begins before push ", sequence_, " in slot ", slot_, " ended");
}

void PushAssembly::add(std::uint64_t offset, std::uint64_t size) {
  bool any = false;
  const auto begin = static_cast<std::int64_t>(offset);
  for_each_part(layout_, begin, begin + static_cast<std::int64_t>(size), [&](const SlicePart& part) {
    const Slice& slice = layout_.slices[part.slice];
    std::int64_t& arrived = arrived_bytes_[part.slice];
    DOWNPOUR_CHECK_AS(ProtocolError, part.begin_bytes == arrived && part.size_bytes % size_bytes(slice.dtype) == 0,
                      "push ", sequence_, ", parameter ", slice.parameter, ": bytes ", part.begin_bytes, " to ",
                      part.begin_bytes + part.size_bytes, " of its slice arrived, expected whole elements from byte ",
                      arrived);
    arrived += part.size_bytes;
    any = true;
  });
  DOWNPOUR_CHECK_AS(ProtocolError, any, "push ", sequence_, ": ", size, " bytes at byte ", offset,
                    " of the slot belong to no parameter");
}

void PushAssembly::finish(const std::vector<bool>& present) {
  DOWNPOUR_CHECK_AS(ProtocolError, present.size() == arrived_bytes_.size(), "push ", sequence_, " speaks of ",
                    present.size(), " slices, the shard has ", arrived_bytes_.size());
  for (std::size_t i = 0; i < present.size(); ++i) {
    const std::int64_t expected = present[i] ? layout_.slices[i].size_bytes() : 0;
    DOWNPOUR_CHECK_AS(ProtocolError, arrived_bytes_[i] == expected, "push ", sequence_, ", parameter ",
                      layout_.slices[i].parameter, ": ", arrived_bytes_[i], " bytes of its slice arrived, expected ",
                      expected);
  }
  open_ = false;
}

}  // namespace downpour::ps
