#include <algorithm>
#include <bit>

#include "csrc/collective/plan_parts.h"

// What takes log2(world) steps: distances or blocks of ranks that double.
namespace downpour::collective {
namespace {

int floor_log2(int number) { return static_cast<int>(std::bit_width(static_cast<unsigned>(number))) - 1; }

// The ranks of recursive doubling: the largest power of two of them take part. The ranks too many are every second one
// of the first, which hand their values to the rank before and get the result from there.
struct Fold {
  int levels;
  int extra;

  explicit Fold(int world) : levels(floor_log2(world)), extra(world - (1 << levels)) {}
  bool pairs(int rank) const { return rank < 2 * extra; }
  bool stands_aside(int rank) const { return pairs(rank) && rank % 2 == 1; }
  int position(int rank) const { return pairs(rank) ? rank / 2 : rank - extra; }
  int rank_at(int position) const { return position < extra ? 2 * position : position + extra; }
};

// Both partners form (the lower's op the higher's), so that they get the same bits even where an operation minds which
// comes first. What one sends may be read late, so each level's values have their own place, the last level's the
// output.
void exchange_level(Draft& draft, const Fold& fold, int level) {
  const auto place = [&](int index) {
    return index < fold.levels ? draft.block(Buffer::kScratch, index) : draft.whole(Buffer::kOutput);
  };
  const int position = fold.position(draft.rank);
  const int partner = fold.rank_at(position ^ (1 << level));
  const Slice before = place(level), after = place(level + 1);
  const Arrival arrival = draft.reduce(level == fold.levels - 1);
  if (draft.rank > partner) {
    draft.exchange(partner, before, partner, after, Arrival::kCopy);
    draft.apply(before, after, arrival);
    return;
  }
  if (level == 0 && !fold.pairs(draft.rank)) {
    draft.copy(draft.whole(Buffer::kOutput), after);
  } else {
    draft.apply(before, after, Arrival::kCopy);
  }
  draft.exchange(partner, before, partner, after, arrival);
}

// The slices of `blocks` blocks from the first on, around the group: two where they pass its end, else the second is
// empty.
struct Blocks {
  Slice slices[2];

  Blocks(const Draft& draft, int first, int blocks) {
    const std::int64_t count = draft.shape.count;
    const int begin = draft.around(first), head = std::min(blocks, draft.world - begin);
    slices[0] = {Buffer::kOutput, begin * count, head * count};
    slices[1] = {Buffer::kOutput, 0, (blocks - head) * count};
  }
};

}  // namespace

void broadcast_by_tree(Draft& draft) {
  const Slice values = draft.whole(Buffer::kOutput);
  const int position = draft.peer(-draft.shape.root);
  for (int half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(draft.world))) / 2; half > 0; half /= 2) {
    const int within = position % (2 * half);
    if (within == 0 && position + half < draft.world) {
      draft.send(draft.peer(half), values);
    } else if (within == half) {
      draft.receive(draft.peer(-half), values, Arrival::kCopy);
    }
  }
}

// Blocks of ranks that double; a block's sum lies with the root where that is in it, else with its first rank. So the
// blocks, and with them which sums are formed, do not depend on the root.
void reduce_by_tree(Draft& draft) {
  const int root = draft.shape.root;
  Slice sum = draft.whole(Buffer::kOutput);
  for (int size = 1; size < draft.world; size *= 2) {
    const auto holder = [&](int begin, int ranks) { return root >= begin && root < begin + ranks ? root : begin; };
    const int left = draft.rank / (2 * size) * (2 * size), right = left + size;
    if (right >= draft.world) {
      continue;
    }
    const int receiver = holder(left, 2 * size);
    const int sender = holder(left, size) == receiver ? holder(right, size) : holder(left, size);
    if (draft.rank == sender) {
      draft.send(receiver, sum);
      return;
    }
    if (draft.rank != root && sum.buffer == Buffer::kOutput) {
      sum = draft.whole(Buffer::kScratch);
      draft.plan.scratch = sum.count;
      draft.copy(draft.whole(Buffer::kOutput), sum);
    }
    draft.receive(sender, sum, draft.reduce(2 * size >= draft.world));
  }
}

void all_reduce_by_doubling(Draft& draft) {
  const Fold fold(draft.world);
  const Slice output = draft.whole(Buffer::kOutput);
  if (fold.stands_aside(draft.rank)) {
    draft.send(draft.rank - 1, output);
    draft.receive(draft.rank - 1, output, Arrival::kCopy);
    return;
  }
  if (fold.levels > 0) {
    draft.plan.scratch = fold.levels * draft.shape.count;
    draft.copy(output, draft.block(Buffer::kScratch, 0));
  }
  if (fold.pairs(draft.rank)) {
    draft.receive(draft.rank + 1, draft.block(Buffer::kScratch, 0), Arrival::kReduce);
  }
  for (int level = 0; level < fold.levels; ++level) {
    exchange_level(draft, fold, level);
  }
  if (fold.pairs(draft.rank)) {
    draft.send(draft.rank + 1, output);
  }
}

// After each round a rank has twice as many blocks, its own and those of the ranks after it.
void all_gather_by_dissemination(Draft& draft) {
  draft.copy(draft.whole(Buffer::kInput), draft.block(Buffer::kOutput, draft.rank));
  for (int held = 1; held < draft.world; held *= 2) {
    const int more = std::min(held, draft.world - held);
    const Blocks sent(draft, draft.rank, more), received(draft, draft.rank + held, more);
    for (int i = 0; i < 2; ++i) {
      draft.exchange(draft.peer(-held), sent.slices[i], draft.peer(held), received.slices[i], Arrival::kCopy);
    }
  }
}

// After each round a rank knows of twice as many that they have come.
void barrier_by_dissemination(Draft& draft) {
  for (int known = 1; known < draft.world; known *= 2) {
    draft.plan.steps.push_back({draft.peer(known), {}, draft.peer(-known), {}, Arrival::kCopy});
  }
}

}  // namespace downpour::collective
