#include "csrc/ps/partition.h"

#include <algorithm>

namespace downpour::ps {
namespace {

constexpr std::int64_t kCutElements = 16;  // one cache line of float32
constexpr std::int64_t kAlignmentBytes = 64;

// Where the flat bytes of all parameters may be cut: at the parameters' ends and at every 16th element inside them.
// Positions are bytes of elements, without padding.
class CutPoints {
 public:
  explicit CutPoints(const Schema& schema) {
    for (const ParameterSpec& parameter : schema.parameters) {
      std::int64_t bytes = 0, end = 0;
      DOWNPOUR_CHECK(!__builtin_mul_overflow(parameter.numel(), downpour::size_bytes(parameter.dtype), &bytes) &&
                         !__builtin_add_overflow(total(), bytes, &end),
                     "partition: the parameters up to '", parameter.name, "' have more than 2^63 - 1 bytes");
      steps_.push_back(kCutElements * downpour::size_bytes(parameter.dtype));
      begins_.push_back(end);
      gap_ = std::max(gap_, std::min(steps_.back(), bytes));
    }
  }

  std::int64_t total() const { return begins_.back(); }
  std::int64_t begin(std::size_t parameter) const { return begins_[parameter]; }
  std::int64_t largest_gap() const { return gap_; }

  // Shapes: 0 <= position <= total().
  std::int64_t at_or_before(std::int64_t position) const {
    if (position == total()) {
      return position;
    }
    const std::size_t parameter = parameter_at(position);
    const std::int64_t inside = position - begins_[parameter];
    return position - inside % steps_[parameter];
  }
  std::int64_t at_or_after(std::int64_t position) const {
    const std::int64_t before = at_or_before(position);
    if (before == position) {
      return position;
    }
    const std::size_t parameter = parameter_at(position);
    return std::min(before + steps_[parameter], begins_[parameter + 1]);
  }

 private:
  // The parameter that has the byte at `position`; parameters without elements have none.
  std::size_t parameter_at(std::int64_t position) const {
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), position);
    return static_cast<std::size_t>(after - begins_.begin()) - 1;
  }

  std::vector<std::int64_t> begins_{0};  // of each parameter, then the total
  std::vector<std::int64_t> steps_;
  std::int64_t gap_ = 0;
};

// The earliest place where shard k can begin when every shard before it has at least `least` bytes; empty when some
// shard would begin beyond the end.
std::vector<std::int64_t> earliest_begins(const CutPoints& points, int shard_count, std::int64_t least) {
  std::vector<std::int64_t> begins{0};
  for (int shard = 1; shard <= shard_count; ++shard) {
    if (least > points.total() - begins.back()) {
      return {};
    }
    begins.push_back(points.at_or_after(begins.back() + least));
  }
  return begins;
}

// The latest place where shard k can begin when every shard before it has at most `most` bytes.
std::vector<std::int64_t> latest_begins(const CutPoints& points, int shard_count, std::int64_t most) {
  std::vector<std::int64_t> begins{0};
  for (int shard = 1; shard <= shard_count; ++shard) {
    begins.push_back(points.at_or_before(begins.back() + std::min(most, points.total() - begins.back())));
  }
  return begins;
}

// The largest size that every shard can have at least.
std::int64_t largest_minimum(const CutPoints& points, int shard_count) {
  std::int64_t possible = 0, impossible = points.total() / shard_count + 1;
  while (impossible - possible > 1) {
    const std::int64_t middle = possible + (impossible - possible) / 2;
    (earliest_begins(points, shard_count, middle).empty() ? impossible : possible) = middle;
  }
  return possible;
}

std::int64_t even_cut(std::int64_t total, int shard, int shard_count) {
  return total / shard_count * shard + total % shard_count * shard / shard_count;
}

// Begins of the shards, then the end. The sizes differ by at most one gap between cut points, which always is possible:
// let m be the largest minimum. Shards of at least m + 1 bytes overshoot the end although none is larger than m + gap,
// so shards of m to m + gap bytes can fall short of the end and can overshoot it; and as every window of one gap
// contains a cut point, they can begin at every cut point in between. So walk back from the end, staying near the even
// cut.
std::vector<std::int64_t> choose_cuts(const CutPoints& points, int shard_count) {
  const std::int64_t least = largest_minimum(points, shard_count);
  const std::int64_t most = least + points.largest_gap();
  const auto earliest = earliest_begins(points, shard_count, least);
  const auto latest = latest_begins(points, shard_count, most);
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(shard_count) + 1);
  cuts.back() = points.total();
  for (int shard = shard_count - 1; shard > 0; --shard) {
    const auto i = static_cast<std::size_t>(shard);
    const std::int64_t low = std::max(earliest[i], cuts[i + 1] - most);
    const std::int64_t high = std::min(latest[i], cuts[i + 1] - least);
    DOWNPOUR_INTERNAL_ASSERT(low <= high, "partition: no cut before shard ", shard);
    const std::int64_t wanted = std::clamp(even_cut(points.total(), shard, shard_count), low, high);
    cuts[i] = points.at_or_before(wanted);
    if (cuts[i] < low) {
      cuts[i] = points.at_or_after(wanted);
    }
  }
  return cuts;
}

void append_slice(ShardLayout& layout, const ParameterSpec& parameter, std::size_t index, std::int64_t begin_bytes,
                  std::int64_t end_bytes) {
  const std::int64_t element_bytes = downpour::size_bytes(parameter.dtype);
  Slice slice;
  slice.parameter = static_cast<std::uint32_t>(index);
  slice.begin = begin_bytes / element_bytes;
  slice.count = (end_bytes - begin_bytes) / element_bytes;
  slice.dtype = parameter.dtype;
  slice.group = parameter.group;
  slice.offset_bytes = layout.buffer_bytes;
  layout.elements += slice.count;
  layout.buffer_bytes += (slice.size_bytes() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  layout.slices.push_back(slice);
}

}  // namespace

std::uint64_t ShardLayout::value_bytes() const {
  std::uint64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += static_cast<std::uint64_t>(slice.size_bytes());
  }
  return bytes;
}

std::vector<ShardLayout> partition(const Schema& schema, int shard_count) {
  DOWNPOUR_CHECK(shard_count >= 1, "partition: ", shard_count, " shards; at least 1 is needed");
  const CutPoints points(schema);
  const std::vector<std::int64_t> cuts = choose_cuts(points, shard_count);
  std::vector<ShardLayout> layouts(static_cast<std::size_t>(shard_count));
  std::size_t shard = 0;
  for (std::size_t i = 0; i < schema.parameters.size(); ++i) {
    const std::int64_t parameter_end = points.begin(i + 1);
    for (std::int64_t at = points.begin(i); at < parameter_end;) {
      while (cuts[shard + 1] <= at) {
        ++shard;
      }
      const std::int64_t end = std::min(parameter_end, cuts[shard + 1]);
      append_slice(layouts[shard], schema.parameters[i], i, at - points.begin(i), end - points.begin(i));
      at = end;
    }
  }
  return layouts;
}

int server_of_shard(int shard, int shard_count, int server_count) {
  DOWNPOUR_CHECK(server_count >= 1 && shard >= 0 && shard < shard_count, "shard ", shard, " of ", shard_count, " on ",
                 server_count, " servers: expected at least 1 server and a shard below the count");
  return static_cast<int>(static_cast<std::int64_t>(shard) * server_count / shard_count);
}

}  // namespace downpour::ps
