#include "csrc/collective/plan.h"

#include <algorithm>

#include "csrc/collective/algorithm_table.h"
#include "csrc/collective/plan_parts.h"

namespace downpour::collective {

Slice part_of(Buffer buffer, std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t rest = count % parts;
  return {buffer, index * (count / parts) + std::min(index, rest), count / parts + (index < rest ? 1 : 0)};
}

void Draft::copy(const Slice& from, const Slice& to) {
  if (from.count > 0 && from != to) {
    plan.copies.push_back({from, to});
  }
}

void Draft::exchange(int to, const Slice& sent, int from, const Slice& received, Arrival arrival) {
  Step step;
  if (sent.count > 0) {
    step.to = to;
    step.sent = sent;
  }
  if (received.count > 0) {
    step.from = from;
    step.received = received;
    step.arrival = arrival;
  }
  if (step != Step()) {
    plan.steps.push_back(step);
  }
}

namespace {

// The root takes the next rank's first, so that several groups with several roots do not all begin at rank 0.
void gather_in_turn(Draft& draft) {
  if (draft.rank != draft.shape.root) {
    draft.send(draft.shape.root, draft.whole(Buffer::kInput));
    return;
  }
  draft.copy(draft.whole(Buffer::kInput), draft.block(Buffer::kOutput, draft.rank));
  for (int distance = 1; distance < draft.world; ++distance) {
    const int from = draft.peer(distance);
    draft.receive(from, draft.block(Buffer::kOutput, from), Arrival::kCopy);
  }
}

void scatter_in_turn(Draft& draft) {
  if (draft.rank != draft.shape.root) {
    draft.receive(draft.shape.root, draft.whole(Buffer::kOutput), Arrival::kCopy);
    return;
  }
  draft.copy(draft.block(Buffer::kInput, draft.rank), draft.whole(Buffer::kOutput));
  for (int distance = 1; distance < draft.world; ++distance) {
    const int to = draft.peer(distance);
    draft.send(to, draft.block(Buffer::kInput, to));
  }
}

// Each rank sums what is its own: no step waits for what another rank has made of the one before.
void reduce_scatter_in_turn(Draft& draft) {
  const Slice own = draft.whole(Buffer::kOutput);
  draft.copy(draft.block(Buffer::kInput, draft.rank), own);
  for (int distance = 1; distance < draft.world; ++distance) {
    const int to = draft.peer(distance);
    const Arrival arrival = draft.reduce(distance == draft.world - 1);
    draft.exchange(to, draft.block(Buffer::kInput, to), draft.peer(-distance), own, arrival);
  }
}

std::vector<Slice> one_after_another(Buffer buffer, const std::vector<std::int64_t>& counts) {
  std::vector<Slice> slices;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    slices.push_back({buffer, begin, count});
    begin += count;
  }
  return slices;
}

void all_to_all_in_turn(Draft& draft) {
  const bool uneven = draft.shape.count == CallShape::kUneven;
  const std::vector<std::int64_t> even(draft.world, draft.shape.count);
  const auto inputs = one_after_another(Buffer::kInput, uneven ? draft.uneven.sent : even);
  const auto outputs = one_after_another(Buffer::kOutput, uneven ? draft.uneven.received : even);
  draft.copy(inputs[draft.rank], outputs[draft.rank]);
  for (int distance = 1; distance < draft.world; ++distance) {
    const int to = draft.peer(distance), from = draft.peer(-distance);
    draft.exchange(to, inputs[to], from, outputs[from], Arrival::kCopy);
  }
}

struct Way {
  Op op;
  Algorithm algorithm;
  void (*write)(Draft&);
};

constexpr Way kWays[] = {
    {Op::kBarrier, Algorithm::kDissemination, barrier_by_dissemination},
    {Op::kBroadcast, Algorithm::kBinomialTree, broadcast_by_tree},
    {Op::kBroadcast, Algorithm::kPipelinedChain, broadcast_by_chain},
    {Op::kAllReduce, Algorithm::kRecursiveDoubling, all_reduce_by_doubling},
    {Op::kAllReduce, Algorithm::kRing, all_reduce_by_ring},
    {Op::kReduce, Algorithm::kBinomialTree, reduce_by_tree},
    {Op::kReduce, Algorithm::kRing, reduce_by_ring},
    {Op::kAllGather, Algorithm::kDissemination, all_gather_by_dissemination},
    {Op::kAllGather, Algorithm::kRing, all_gather_by_ring},
    {Op::kGather, Algorithm::kLinear, gather_in_turn},
    {Op::kScatter, Algorithm::kLinear, scatter_in_turn},
    {Op::kReduceScatter, Algorithm::kLinear, reduce_scatter_in_turn},
    {Op::kReduceScatter, Algorithm::kRing, reduce_scatter_by_ring},
    {Op::kAllToAll, Algorithm::kLinear, all_to_all_in_turn},
};

const Way& way_for(const CallShape& shape, int world) {
  const std::int64_t count = shape.count == CallShape::kUneven ? 0 : shape.count;
  const Algorithm algorithm = algorithm_for(shape.op, world, count * size_bytes(shape.type));
  const auto way = std::ranges::find_if(
      kWays, [&](const Way& candidate) { return candidate.op == shape.op && candidate.algorithm == algorithm; });
  DOWNPOUR_INTERNAL_ASSERT(way != std::end(kWays), "nobody wrote ", name(shape.op), " by ", name(algorithm));
  return *way;
}

void check_counts(const CallShape& shape, int world, const UnevenCounts& uneven) {
  if (shape.count != CallShape::kUneven) {
    DOWNPOUR_INTERNAL_ASSERT(shape.count >= 0, to_string(shape));
    return;
  }
  const auto expected = static_cast<std::size_t>(world);
  DOWNPOUR_INTERNAL_ASSERT(shape.op == Op::kAllToAll, to_string(shape));
  DOWNPOUR_INTERNAL_ASSERT(uneven.sent.size() == expected && uneven.received.size() == expected, "counts of ",
                           uneven.sent.size(), " slices sent and ", uneven.received.size(), " received in a world of ",
                           world);
}

std::string to_string(const Slice& slice) {
  if (slice.count == 0) {
    return "nothing";
  }
  const std::string_view buffer = slice.buffer == Buffer::kInput    ? "input"
                                  : slice.buffer == Buffer::kOutput ? "output"
                                                                    : "scratch";
  return concat(buffer, "[", slice.begin, ",", slice.begin + slice.count, ")");
}

std::string_view suffix(Arrival arrival) {
  switch (arrival) {
    case Arrival::kCopy: return "";
    case Arrival::kReduce: return " reduce";
    case Arrival::kReduceLast: return " reduce last";
  }
  return " no arrival";
}

std::string to_string(const Step& step) {
  std::string text;
  if (step.to != Step::kNobody) {
    text = concat("to ", step.to, " ", to_string(step.sent));
  }
  if (step.from != Step::kNobody) {
    text += concat(text.empty() ? "" : " | ", "from ", step.from, " ", to_string(step.received), suffix(step.arrival));
  }
  return text;
}

}  // namespace

Plan make_plan(const CallShape& shape, int rank, int world, const UnevenCounts& uneven) {
  DOWNPOUR_INTERNAL_ASSERT(rank >= 0 && rank < world, "rank ", rank, " of ", world);
  DOWNPOUR_INTERNAL_ASSERT(shape.root >= 0 && shape.root < world, "root ", shape.root, " of ", world);
  check_counts(shape, world, uneven);
  Draft draft{shape, uneven, rank, world};
  way_for(shape, world).write(draft);
  return std::move(draft.plan);
}

std::string to_string(const Plan& plan) {
  std::string text;
  for (const Copy& copy : plan.copies) {
    text += concat("copy ", to_string(copy.from), " to ", to_string(copy.to), "\n");
  }
  for (const Step& step : plan.steps) {
    text += to_string(step) + "\n";
  }
  return text;
}

}  // namespace downpour::collective
