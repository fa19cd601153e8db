#include <algorithm>

#include "csrc/collective/algorithm_table.h"
#include "csrc/collective/plan_parts.h"

// Ranks in a circle or a line: each sends to the next and receives from the one before.
namespace downpour::collective {
namespace {

// Rank r begins with chunk r - 1 of `buffer` and ends with chunk r complete. A chunk is summed on its way around, by
// each rank once, so there is one order whatever arrives first.
void reduce_chunks_around(Draft& draft, Buffer buffer) {
  for (int step = 0; step < draft.world - 1; ++step) {
    const int sent = draft.rank - 1 - step;
    const Arrival arrival = draft.reduce(step == draft.world - 2);
    draft.exchange(draft.peer(1), draft.chunk(buffer, sent), draft.peer(-1), draft.chunk(buffer, sent - 1), arrival);
  }
}

}  // namespace

// A chunk that was sent half summed is written again only by the sum, which came from it.
void all_reduce_by_ring(Draft& draft) {
  constexpr Buffer kOutput = Buffer::kOutput;
  reduce_chunks_around(draft, kOutput);
  for (int step = 0; step < draft.world - 1; ++step) {
    const int sent = draft.rank - step;
    draft.exchange(draft.peer(1), draft.chunk(kOutput, sent), draft.peer(-1), draft.chunk(kOutput, sent - 1),
                   Arrival::kCopy);
  }
}

void reduce_by_ring(Draft& draft) {
  const int root = draft.shape.root;
  const Buffer sums = draft.rank == root ? Buffer::kOutput : Buffer::kScratch;
  if (draft.rank != root) {
    draft.plan.scratch = draft.shape.count;
    draft.copy(draft.whole(Buffer::kOutput), draft.whole(sums));
  }
  reduce_chunks_around(draft, sums);
  if (draft.rank != root) {
    draft.send(root, draft.chunk(sums, draft.rank));
    return;
  }
  for (int distance = 1; distance < draft.world; ++distance) {
    const int from = draft.peer(distance);
    draft.receive(from, draft.chunk(sums, from), Arrival::kCopy);
  }
}

void all_gather_by_ring(Draft& draft) {
  constexpr Buffer kOutput = Buffer::kOutput;
  draft.copy(draft.whole(Buffer::kInput), draft.block(kOutput, draft.rank));
  for (int step = 0; step < draft.world - 1; ++step) {
    const int sent = draft.rank - step;
    draft.exchange(draft.peer(1), draft.block(kOutput, sent), draft.peer(-1), draft.block(kOutput, sent - 1),
                   Arrival::kCopy);
  }
}

// As reduce_chunks_around, but the input must stay as it is, and a sum on its way may lie where it is until the call is
// over: each has its own place in scratch.
void reduce_scatter_by_ring(Draft& draft) {
  const int passed_on = std::max(draft.world - 2, 0);
  draft.plan.scratch = passed_on * draft.shape.count;
  const auto place = [&](int step) {
    return step < passed_on ? draft.block(Buffer::kScratch, step) : draft.whole(Buffer::kOutput);
  };
  for (int step = 0; step <= passed_on; ++step) {
    draft.copy(draft.block(Buffer::kInput, draft.rank - 2 - step), place(step));
  }
  for (int step = 0; step < draft.world - 1; ++step) {
    const Slice sent = step == 0 ? draft.block(Buffer::kInput, draft.rank - 1) : place(step - 1);
    draft.exchange(draft.peer(1), sent, draft.peer(-1), place(step), draft.reduce(step == draft.world - 2));
  }
}

// Each rank passes a piece on while the next one comes in; the last one has nobody to pass it to.
void broadcast_by_chain(Draft& draft) {
  const std::int64_t bytes = draft.shape.count * size_bytes(draft.shape.type);
  const std::int64_t pieces = (bytes + kChainPieceBytes - 1) / kChainPieceBytes;
  const auto piece = [&](std::int64_t index) {
    const bool exists = index >= 0 && index < pieces;
    return exists ? part_of(Buffer::kOutput, draft.shape.count, pieces, index) : Slice();
  };
  const bool first = draft.rank == draft.shape.root, last = draft.peer(1) == draft.shape.root;
  for (std::int64_t index = 0; index <= pieces; ++index) {
    const Slice sent = last ? Slice() : piece(first ? index : index - 1);
    draft.exchange(draft.peer(1), sent, draft.peer(-1), first ? Slice() : piece(index), Arrival::kCopy);
  }
}

}  // namespace downpour::collective
