#include "csrc/collective/call.h"

#include <algorithm>
#include <limits>

namespace downpour::collective {
namespace {

bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter; }

bool has_root(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

// How much a rank hands in of one of the buffers: none, `count` elements, or as many for each rank.
enum class Extent { kNone, kOne, kOnePerRank };

Extent input_extent(const CallShape& shape, int rank) {
  switch (shape.op) {
    case Op::kBarrier:
    case Op::kBroadcast:
    case Op::kAllReduce:
    case Op::kReduce: return Extent::kNone;
    case Op::kAllGather:
    case Op::kGather: return Extent::kOne;
    case Op::kScatter: return rank == shape.root ? Extent::kOnePerRank : Extent::kNone;
    case Op::kReduceScatter:
    case Op::kAllToAll: return Extent::kOnePerRank;
  }
  return Extent::kNone;
}

Extent output_extent(const CallShape& shape, int rank) {
  switch (shape.op) {
    case Op::kBarrier: return Extent::kNone;
    case Op::kBroadcast:
    case Op::kAllReduce:
    case Op::kReduce:
    case Op::kScatter:
    case Op::kReduceScatter: return Extent::kOne;
    case Op::kAllGather:
    case Op::kAllToAll: return Extent::kOnePerRank;
    case Op::kGather: return rank == shape.root ? Extent::kOnePerRank : Extent::kNone;
  }
  return Extent::kNone;
}

template <typename Piece>
std::vector<std::int64_t> sizes_of(const std::vector<Piece>& pieces) {
  std::vector<std::int64_t> sizes;
  sizes.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    sizes.push_back(static_cast<std::int64_t>(piece.size()));
  }
  return sizes;
}

std::string found(const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    total += size;
  }
  return concat(total, " bytes in ", sizes.size(), sizes.size() == 1 ? " piece" : " pieces");
}

// One buffer of one rank's call, on its way through the checks; `what` begins every message.
struct BufferCheck {
  const CallShape& shape;
  int world;
  std::string what;
  std::vector<std::int64_t> sizes;

  std::int64_t slice_bytes() const { return shape.count * size_bytes(shape.type); }

  void expect_none() const { DOWNPOUR_CHECK(sizes.empty(), what, ": expected none, found ", found(sizes)); }

  void expect_one() const {
    DOWNPOUR_CHECK(sizes.size() == 1 && sizes[0] == slice_bytes(), what, ": expected ", slice_bytes(),
                   " bytes in 1 piece, found ", found(sizes));
  }

  void expect_one_per_rank() const {
    DOWNPOUR_CHECK(sizes.size() == static_cast<std::size_t>(world), what, ": expected ", slice_bytes() * world,
                   " bytes in ", world, world == 1 ? " piece" : " pieces", ", found ", found(sizes));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      DOWNPOUR_CHECK(sizes[i] == slice_bytes(), what, " ", i, ": expected ", slice_bytes(), " bytes, found ", sizes[i]);
    }
  }

  void expect_uneven() const {
    DOWNPOUR_CHECK(sizes.size() == static_cast<std::size_t>(world), what, ": expected ", world, " pieces, found ",
                   found(sizes));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      DOWNPOUR_CHECK(sizes[i] % size_bytes(shape.type) == 0, what, " ", i, ": expected whole elements of ",
                     size_bytes(shape.type), " bytes, found ", sizes[i], " bytes");
    }
  }

  void expect(Extent extent) const {
    if (extent == Extent::kNone) {
      expect_none();
    } else if (extent == Extent::kOne) {
      expect_one();
    } else if (shape.count == CallShape::kUneven) {
      expect_uneven();
    } else {
      expect_one_per_rank();
    }
  }
};

void check_count(const CallShape& shape, int world, const std::string& where) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max() / size_bytes(shape.type) / world;
  const bool uneven = shape.op == Op::kAllToAll && shape.count == CallShape::kUneven;
  DOWNPOUR_CHECK(uneven || (shape.count >= 0 && shape.count <= largest), where, "expected a count of 0 to ", largest,
                 ", found ", shape.count);
}

}  // namespace

std::string_view name(Op op) {
  switch (op) {
    case Op::kBarrier: return "barrier";
    case Op::kBroadcast: return "broadcast";
    case Op::kAllReduce: return "all_reduce";
    case Op::kReduce: return "reduce";
    case Op::kAllGather: return "all_gather";
    case Op::kGather: return "gather";
    case Op::kScatter: return "scatter";
    case Op::kReduceScatter: return "reduce_scatter";
    case Op::kAllToAll: return "all_to_all";
  }
  return "no operation";
}

std::string to_string(const CallShape& shape) {
  if (shape.op == Op::kBarrier) {
    return std::string(name(shape.op));
  }
  std::string text = concat(name(shape.op), " of ");
  text += shape.count == CallShape::kUneven ? "uneven slices of " : concat(shape.count, " ");
  text += name(shape.type);
  if (reduces(shape.op)) {
    text += concat(", ", name(shape.reduce));
  }
  if (has_root(shape.op)) {
    const bool to_root = shape.op == Op::kReduce || shape.op == Op::kGather;
    text += concat(to_root ? " to rank " : " from rank ", shape.root);
  }
  return text;
}

void check_call(const Call& call, int rank, int world) {
  DOWNPOUR_INTERNAL_ASSERT(rank >= 0 && rank < world, "rank ", rank, " of ", world);
  const CallShape& shape = call.shape;
  const std::string where = concat(to_string(shape), ", on rank ", rank, " of ", world, ": ");
  check_count(shape, world, where);
  if (has_root(shape.op)) {
    DOWNPOUR_CHECK(shape.root >= 0 && shape.root < world, where, "expected a root of 0 to ", world - 1, ", found ",
                   shape.root);
  }
  if (reduces(shape.op)) {
    check_supported(shape.type, shape.reduce);
  }
  BufferCheck{shape, world, where + "input", sizes_of(call.inputs)}.expect(input_extent(shape, rank));
  BufferCheck{shape, world, where + "output", sizes_of(call.outputs)}.expect(output_extent(shape, rank));
}

}  // namespace downpour::collective
