#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/ps/layout_parts.h"
#include "csrc/ps/shard_link.h"

namespace downpour::ps {

// ---- what a call wants -----------------------------------------------------------------------------------------------

void ShardLink::offer(const std::function<void(const Slice&, std::byte* to)>& copy,
                      std::span<const double> accumulators) {
  if (initialised_ || has_offer_) {
    return;  // an earlier one may be on its way, and its bytes must stay
  }
  offer_ = transport::Window(static_cast<std::uint64_t>(terms_.layout.buffer_bytes));
  for (const Slice& slice : terms_.layout.slices) {
    copy(slice, offer_.bytes().data() + slice.offset_bytes);
  }
  accumulators_.assign(accumulators.begin(), accumulators.end());
  has_offer_ = offering_ = true;
  offered_bytes_ = 0;
  pump();
}

// A shard that is away does not stop us while there are slots; one that flows gets its pushes one after the other.
bool ShardLink::can_begin() const {
  if (!log_.slots() || !log_.has_room()) {
    return false;
  }
  return !is_flowing() || (!sender_.has_more() && (in_place_ || log_.next() < answered_ + welcome_.slots));
}

void ShardLink::begin(std::uint64_t push, std::uint64_t lease) {
  log_.begin(push, lease, std::exchange(kept_base_, std::nullopt).value_or(base_));
  sender_.begin();
}

// [ps 3/7]
void ShardLink::add(std::size_t slice, const std::byte* gradient) {
  while (sender_.add_some(slice, gradient)) {
    pump();
  }
  pump();
}

bool ShardLink::wants_attention() const {
  return is_flowing() && (connection_->credits() == 0 || !connection_->idle());
}

void ShardLink::end(std::span<const Hyper> groups) {
  log_.end_newest(groups);
  pump();
}

void ShardLink::abandon() {
  const std::uint64_t sequence = log_.newest().header.sequence;
  const bool was_seen = log_.newest().in_flight;
  log_.abandon_newest();
  sender_.abandon();
  if (was_seen && is_ready()) {
    send_resume(sequence);
  }
}

bool ShardLink::has_handed_over() {
  if (!is_flowing()) {
    return true;
  }
  return !sender_.has_more() && (connection_->medium() != transport::Medium::kTcp || connection_->idle());
}

void ShardLink::keep_base_version() {
  if (!kept_base_) {
    kept_base_ = base_;
  }
}

void ShardLink::save() {
  saving_ = true;
  save_sent_ = not_saved_ = false;
  pump();
}

void ShardLink::begin_pull() {
  pulling_ = true;
  pull_sent_ = complete_ = handed_out_ = false;
  arrived_ = adopted_ = 0;
  pump();
}

// [ps 6/7]
bool ShardLink::adopt(const Client::Adopt& adopt) {
  const auto begin = static_cast<std::int64_t>(std::exchange(adopted_, arrived_));
  const std::byte* const window = is_ready() ? connection_->incoming().data() : nullptr;
  for_each_part(terms_.layout, begin, static_cast<std::int64_t>(adopted_), [&](const SlicePart& part) {
    const Slice& slice = terms_.layout.slices[part.slice];
    const std::int64_t element_bytes = size_bytes(slice.dtype);
    adopt(slice, slice.begin + part.begin_bytes / element_bytes, part.size_bytes / element_bytes,
          window + slice.offset_bytes + part.begin_bytes);
  });
  handed_out_ |= complete_;
  return handed_out_;
}

void ShardLink::finish_pull() {
  base_ = pulled_;
  pulling_ = complete_ = false;
}

// ---- what is sent ----------------------------------------------------------------------------------------------------

void ShardLink::pump() {
  if (is_ready()) {
    pump_offer();
    pump_pushes();
    pump_pull();
    pump_save();
  }
}

// Behind the slots: those may hold pushes that a shard which has lost all must get after its values.
void ShardLink::pump_offer() {
  const Bytes values = offer_.bytes();
  const std::uint64_t place = welcome_.slots * static_cast<std::uint64_t>(terms_.layout.buffer_bytes);
  while (offering_ && !initialised_ && may_take_credit()) {
    const std::uint64_t size = std::min(terms_.options.fragment_bytes, values.size() - offered_bytes_);
    const bool last = offered_bytes_ + size == values.size();
    out_.clear();
    encode(Initialise{static_cast<std::uint8_t>(last), last ? accumulators_ : std::vector<double>{}}, out_);
    connection_->put(static_cast<std::uint16_t>(MessageType::kInitialise), out_.bytes(),
                     values.subspan(offered_bytes_, size), place + offered_bytes_, transport::Credit::kTake);
    offered_bytes_ += size;
    offering_ = !last;
  }
}

void ShardLink::pump_pushes() {
  while (is_flowing() && may_take_credit()) {
    const PushSender::Fragment* fragment = sender_.next();
    if (fragment == nullptr || !may_send(*fragment->record)) {
      return;
    }
    send(*fragment);
    sender_.sent();
  }
}

// Elsewhere than in shared memory pushes run ahead of their acknowledgements by the server's slots, but one of these does for all:
// it decides a push before it reads on, and finds its bytes in its caches.
bool ShardLink::may_send(const ReplayRecord& record) const {
  return in_place_ || record.header.sequence < answered_ + welcome_.slots;
}

void ShardLink::send(const PushSender::Fragment& fragment) {
  ReplayRecord& record = *fragment.record;
  record.in_flight = true;
  fragment_.sequence = record.header.sequence;
  fragment_.slot = in_place_ ? record.slot : 0;
  fragment_.last = fragment.last ? 1 : 0;
  if (fragment.last) {
    fragment_.header = record.header;
    fragment_.header.replayed = record.verdict;
    fragment_.header.exempt_from_staleness = fragment.again && !record.verdict;
    counters_.replayed += fragment.again && record.header.sequence >= known_ ? 1 : 0;
  }
  out_.clear();
  encode(fragment_, out_);
  const Bytes bulk = log_.slot(record).subspan(fragment.begin, fragment.end - fragment.begin);
  const auto buffer_bytes = static_cast<std::uint64_t>(terms_.layout.buffer_bytes);
  connection_->put(static_cast<std::uint16_t>(MessageType::kPush), out_.bytes(), bulk,
                   fragment_.slot * buffer_bytes + fragment.begin, transport::Credit::kTake);
}

void ShardLink::send_resume(std::uint64_t sequence) {
  out_.clear();
  encode(Resume{sequence}, out_);
  connection_->send(static_cast<std::uint16_t>(MessageType::kResume), out_.bytes());
}

// After all pushes that ended. A shard without values parks it, unless pushes must come first.
void ShardLink::pump_pull() {
  const bool pushes_first = is_flowing() ? sender_.has_ended_more() : log_.has_ended();
  if (!pulling_ || pull_sent_ || handed_out_ || pushes_first) {
    return;
  }
  ++request_;
  out_.clear();
  encode(Pull{request_}, out_);
  connection_->send(static_cast<std::uint16_t>(MessageType::kPull), out_.bytes());
  pull_sent_ = true;
}

// Once all that is kept has been decided; after a crash that is replayed first.
void ShardLink::pump_save() {
  if (!saving_ || save_sent_ || is_saved() || !is_flowing() || answered_ != log_.next()) {
    return;
  }
  out_.clear();
  connection_->send(static_cast<std::uint16_t>(MessageType::kSave), out_.bytes());
  save_sent_ = true;
}

}  // namespace downpour::ps
