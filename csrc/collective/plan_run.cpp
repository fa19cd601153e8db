#include "csrc/collective/plan_run.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/collective/reduce.h"

namespace downpour::collective {
namespace {

void check_present(const Link& link) {
  DOWNPOUR_CHECK_AS(PeerLostError, !link.has_left(), "rank ", link.peer(), " has ended its group");
}

UnevenCounts uneven_counts(const Call& call) {
  UnevenCounts counts;
  const auto element = static_cast<std::size_t>(size_bytes(call.shape.type));
  for (const Bytes piece : call.inputs) {
    counts.sent.push_back(static_cast<std::int64_t>(piece.size() / element));
  }
  for (const MutableBytes piece : call.outputs) {
    counts.received.push_back(static_cast<std::int64_t>(piece.size() / element));
  }
  return counts;
}

Plan plan_of(const Call& call, int rank, int world) {
  const bool is_uneven = call.shape.count == CallShape::kUneven;
  return make_plan(call.shape, rank, world, is_uneven ? uneven_counts(call) : UnevenCounts{});
}

}  // namespace

PlanRun::PlanRun(const Call& call, const PieceHeader& header, int rank, std::span<Link* const> links)
    : call_(call),
      header_(header),
      rank_(rank),
      links_(links),
      plan_(plan_of(call, rank, static_cast<int>(links.size()))),
      scratch_bytes_(static_cast<std::size_t>(plan_.scratch * element_bytes())),
      scratch_(scratch_bytes_) {
  for (const Bytes piece : call.inputs) {
    // One type for all buffers; no plan writes an input.
    inputs_.emplace_back(const_cast<std::byte*>(piece.data()), piece.size());
  }
  copy_own();
  begin_step();
}

PlanRun::~PlanRun() {
  for (std::size_t other = 0; other < links_.size(); ++other) {
    if (other != static_cast<std::size_t>(rank_)) {
      links_[other]->keep_pieces();
    }
  }
}

std::span<const MutableBytes> PlanRun::memory_of(Buffer buffer) const {
  switch (buffer) {
    case Buffer::kInput: return inputs_;
    case Buffer::kOutput: return call_.outputs;
    case Buffer::kScratch: break;
  }
  return {&scratch_, 1};
}

// The memory of `count` elements of a slice from its element `begin` on, in as many runs as there are pieces.
template <class Visit>
void PlanRun::for_each_run(const Slice& slice, std::int64_t begin, std::int64_t count, const Visit& visit) const {
  auto skip = static_cast<std::size_t>((slice.begin + begin) * element_bytes());
  auto left = static_cast<std::size_t>(count * element_bytes());
  for (const MutableBytes piece : memory_of(slice.buffer)) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    const std::size_t size = std::min(left, piece.size() - skip);
    if (size > 0 && !visit(piece.subspan(skip, size))) {
      return;
    }
    left -= size;
    skip = 0;
  }
}

void PlanRun::copy_own() {
  for (const Copy& copy : plan_.copies) {
    std::int64_t done = 0;
    for_each_run(copy.from, 0, copy.from.count, [&](MutableBytes from) {
      for_each_run(copy.to, done, static_cast<std::int64_t>(from.size()) / element_bytes(), [&](MutableBytes to) {
        if (to.data() != from.data()) {
          std::memcpy(to.data(), from.data(), to.size());
        }
        from = from.subspan(to.size());
        done += static_cast<std::int64_t>(to.size()) / element_bytes();
        return true;
      });
      return true;
    });
  }
}

void PlanRun::begin_step() {
  sent_ = received_ = 0;
  sent_all_ = step_ >= plan_.steps.size() || plan_.steps[step_].to == Step::kNobody;
  received_all_ = step_ >= plan_.steps.size() || plan_.steps[step_].from == Step::kNobody;
}

bool PlanRun::advance() {
  while (step_ < plan_.steps.size()) {
    const bool sent = send_some();
    const bool received = receive_some();
    if (!sent || !received) {
      return false;
    }
    ++step_;
    begin_step();
  }
  return true;
}

int PlanRun::waits_for() const {
  if (step_ >= plan_.steps.size()) {
    return Step::kNobody;
  }
  return received_all_ ? plan_.steps[step_].to : plan_.steps[step_].from;
}

bool PlanRun::send_some() {
  const Step& step = plan_.steps[step_];
  if (step.to == rank_ && !sent_all_) {
    for_each_run(step.sent, 0, step.sent.count, [&](MutableBytes run) {
      arrive(run);
      return true;
    });
    sent_all_ = true;
  }
  while (!sent_all_) {
    Link& link = *links_[static_cast<std::size_t>(step.to)];
    if (!link.has_room()) {
      check_present(link);
      return false;
    }
    Bytes piece;
    for_each_run(step.sent, sent_, step.sent.count - sent_, [&](MutableBytes run) {
      piece = run.first(std::min<std::size_t>(run.size(), kPieceBytes));
      return false;
    });
    link.put_piece(header_, piece);
    sent_ += static_cast<std::int64_t>(piece.size()) / element_bytes();
    sent_all_ = sent_ >= step.sent.count;
  }
  return true;
}

bool PlanRun::receive_some() {
  const Step& step = plan_.steps[step_];
  while (!received_all_) {
    Link& link = *links_[static_cast<std::size_t>(step.from)];
    const Link::Piece* const piece = link.front();
    if (piece == nullptr) {
      check_present(link);
      return false;
    }
    DOWNPOUR_CHECK(piece->header == header_, "the ranks of the group call different things: rank ", link.peer(), " ",
                   to_string(piece->header.shape), " (call ", piece->header.number, "), this rank ",
                   to_string(header_.shape), " (call ", header_.number,
                   "); expected the same calls in the same order, of one size, type and operation, on every rank");
    arrive(piece->bytes);
    link.pop();
  }
  return true;
}

void PlanRun::arrive(Bytes bytes) {
  const Step& step = plan_.steps[step_];
  const auto count = static_cast<std::int64_t>(bytes.size()) / element_bytes();
  DOWNPOUR_CHECK_AS(
      ProtocolError,
      count * element_bytes() == static_cast<std::int64_t>(bytes.size()) && count <= step.received.count - received_,
      "a piece of ", bytes.size(), " bytes from rank ", step.from, ", expected at most ",
      step.received.count - received_, " elements of ", element_bytes(), " bytes");
  const bool is_last = step.arrival == Arrival::kReduceLast && call_.shape.reduce == ReduceOp::kAverage;
  const Reduction reduction{call_.shape.type, call_.shape.reduce,
                            is_last ? static_cast<std::int32_t>(links_.size()) : 1};
  for_each_run(step.received, received_, count, [&](MutableBytes run) {
    if (step.arrival == Arrival::kCopy) {
      std::memcpy(run.data(), bytes.data(), run.size());
    } else {
      const std::array<const void*, 2> sources{run.data(), bytes.data()};
      reduce(reduction, run.data(), sources, static_cast<std::int64_t>(run.size()) / element_bytes());
    }
    bytes = bytes.subspan(run.size());
    return true;
  });
  received_ += count;
  received_all_ = received_ >= step.received.count;
}

}  // namespace downpour::collective
