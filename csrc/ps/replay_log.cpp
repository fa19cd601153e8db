#include "csrc/ps/replay_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::ps {

ReplayLog::ReplayLog(const ShardLayout& layout, std::uint32_t groups)
    : layout_(layout), groups_(groups), buffer_bytes_(static_cast<std::uint64_t>(layout.buffer_bytes)) {}

std::vector<ReplayRecord> ReplayLog::new_ring(std::uint32_t slots) const {
  std::vector<ReplayRecord> ring(slots);
  for (ReplayRecord& record : ring) {  // now, and never on the data path
    record.header.groups.resize(groups_);
    record.checks.resize(groups_);
    record.header.present.resize(layout_.slices.size());
  }
  return ring;
}

void ReplayLog::move_to(MutableBytes memory, std::uint32_t slots, std::shared_ptr<void> keeper) {
  DOWNPOUR_CHECK(slots > 0 && memory.size() >= slots * buffer_bytes_, "replay log: ", memory.size(), " bytes for ",
                 slots, " slots of ", buffer_bytes_, " bytes");
  std::uint64_t kept_from = first_;
  while (next_ - kept_from > slots && record(kept_from).verdict) {
    ++kept_from;
  }
  DOWNPOUR_CHECK(next_ - kept_from <= slots, "replay log: ", next_ - kept_from, " undecided pushes for ", slots,
                 " slots");
  std::vector<ReplayRecord> ring = new_ring(slots);
  std::uint32_t used = 0;
  for (std::uint64_t sequence = kept_from; sequence < next_; ++sequence) {
    ReplayRecord& moved = ring[sequence % slots] = record(sequence);
    const MutableBytes from = slot(moved);
    moved.slot = used++;
    moved.in_flight = false;
    if (!from.empty()) {
      std::memcpy(memory.data() + moved.slot * buffer_bytes_, from.data(), from.size());
    }
  }
  free_.clear();
  free_.reserve(slots);
  for (std::uint32_t slot = slots; slot > used; --slot) {
    free_.push_back(slot - 1);
  }
  first_ = kept_from;
  ring_ = std::move(ring);
  memory_ = memory;
  keeper_ = std::move(keeper);
}

ReplayRecord* ReplayLog::find(std::uint64_t sequence) {
  return sequence >= first_ && sequence < next_ ? &record(sequence) : nullptr;
}

MutableBytes ReplayLog::slot(const ReplayRecord& record) const {
  return memory_.subspan(record.slot * buffer_bytes_, buffer_bytes_);
}

bool ReplayLog::may_drop_first() const {
  return !is_empty() && record(first_).verdict.has_value() && !record(first_).in_flight;
}

bool ReplayLog::has_ended() const { return !is_empty() && record(first_).ended; }

bool ReplayLog::has_room() const { return !free_.empty() || may_drop_first(); }

void ReplayLog::drop_first() { free_.push_back(record(first_++).slot); }

ReplayRecord& ReplayLog::begin(std::uint64_t push, std::uint64_t lease, Version base) {
  if (free_.empty()) {
    DOWNPOUR_CHECK(may_drop_first(), "replay log: all ", slots(), " slots hold undecided pushes");
    drop_first();
  }
  ReplayRecord& begun = record(next_);
  begun.push = push;
  begun.slot = free_.back();
  free_.pop_back();
  begun.header.sequence = next_++;
  begun.header.lease = lease;
  begun.header.base = base;
  std::fill(begun.checks.begin(), begun.checks.end(), GradientCheck{});
  std::fill(begun.header.present.begin(), begun.header.present.end(), false);
  begun.verdict.reset();
  begun.ended = begun.in_flight = false;
  return begun;
}

// Every element must be finite; the norm is that of gradients, not of what plain groups carry.
void ReplayLog::end_newest(std::span<const Hyper> groups) {
  ReplayRecord& ended = newest();
  ended.header.groups.assign(groups.begin(), groups.end());
  ended.header.check = {};
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const GradientCheck& check = ended.checks[group];
    ended.header.check.finite &= check.finite;
    ended.header.check.squared_norm += groups[group].plain != 0 ? 0 : check.squared_norm;
  }
  ended.ended = true;
}

void ReplayLog::abandon_newest() {
  DOWNPOUR_INTERNAL_ASSERT(!is_empty() && !newest().ended);
  free_.push_back(newest().slot);
  --next_;
}

void ReplayLog::release_below(std::uint64_t sequence) {
  while (first_ < sequence && may_drop_first()) {
    drop_first();
  }
}

void ReplayLog::connection_lost() {
  for (std::uint64_t sequence = first_; sequence < next_; ++sequence) {
    record(sequence).in_flight = false;
  }
}

void ReplayLog::renumber(std::uint64_t sequence) {
  const bool has_open = !is_empty() && !newest().ended;
  ReplayRecord open;
  if (has_open) {
    open = newest();
    --next_;
  }
  while (!is_empty()) {
    drop_first();
  }
  first_ = next_ = sequence;
  if (has_open) {
    record(next_) = std::move(open);
    record(next_).header.sequence = next_;
    ++next_;
  }
}

}  // namespace downpour::ps
