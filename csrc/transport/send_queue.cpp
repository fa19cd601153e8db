#include "csrc/transport/send_queue.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace downpour::transport {

void SendQueue::push(const FrameHeader& header, Bytes body, Bytes bulk, Way way) {
  reclaim();
  const std::size_t at = small_.size();
  small_.resize(at + kFrameHeaderBytes);
  encode_header(header, std::span(small_).subspan(at).first<kFrameHeaderBytes>());
  small_.insert(small_.end(), body.begin(), body.end());
  const std::size_t small_bytes = kFrameHeaderBytes + body.size();
  if (!empty() && entries_.back().bulk.empty()) {
    entries_.back() = {entries_.back().small_bytes + small_bytes, bulk, way, false};
  } else {
    entries_.push_back({small_bytes, bulk, way, false});
  }
}

// Moves what is unsent to the front before a vector would grow, when that frees at least half of it.
void SendQueue::reclaim() {
  if (small_begin_ * 2 >= small_.capacity() && small_begin_ > 0) {
    small_.erase(small_.begin(), small_.begin() + static_cast<std::ptrdiff_t>(small_begin_));
    small_begin_ = 0;
  }
  if (first_ * 2 >= entries_.capacity() && first_ > 0) {
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
}

SendQueue::Gathered SendQueue::gather(std::span<iovec> out) const {
  std::size_t count = 0;
  auto* small = const_cast<std::byte*>(small_.data()) + small_begin_;  // writev takes it without const and only reads
  for (std::size_t i = first_; i < entries_.size() && count + 2 <= out.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.small_bytes > 0) {
      out[count++] = {small, entry.small_bytes};
    }
    if (!entry.bulk.empty() && entry.way == Way::kByPage) {
      return {count, true};
    }
    if (!entry.bulk.empty()) {
      out[count++] = {const_cast<std::byte*>(entry.bulk.data()), entry.bulk.size()};
    }
    small += entry.small_bytes;
  }
  return {count, false};
}

Bytes SendQueue::next_pages() const {
  const bool come_first = !empty() && entries_[first_].small_bytes == 0 && entries_[first_].way == Way::kByPage;
  return come_first ? entries_[first_].bulk : Bytes{};
}

void SendQueue::forget_pages() {
  for (std::size_t i = first_; i < entries_.size(); ++i) {
    entries_[i].way = Way::kCopied;
  }
}

void SendQueue::consume(std::size_t sent_bytes) {
  while (sent_bytes > 0) {
    DOWNPOUR_INTERNAL_ASSERT(!empty(), "more bytes sent than were queued");
    Entry& entry = entries_[first_];
    const std::size_t of_small = std::min(sent_bytes, entry.small_bytes);
    entry.small_bytes -= of_small;
    small_begin_ += of_small;
    const std::size_t of_bulk = std::min(sent_bytes - of_small, entry.bulk.size());
    entry.bulk = entry.bulk.subspan(of_bulk);
    sent_bytes -= of_small + of_bulk;
    first_ += entry.small_bytes == 0 && entry.bulk.empty() ? 1 : 0;
  }
  if (empty()) {
    clear();
  }
}

void SendQueue::keep_bulk() {
  std::size_t bytes = 0;
  bool all_kept = true;
  for (std::size_t i = first_; i < entries_.size(); ++i) {
    bytes += entries_[i].bulk.size();
    all_kept &= entries_[i].is_kept || entries_[i].bulk.empty();
  }
  if (all_kept) {
    return;
  }
  next_kept_.resize(std::max(next_kept_.size(), bytes));
  std::byte* to = next_kept_.data();
  for (std::size_t i = first_; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    const auto end = std::copy(entry.bulk.begin(), entry.bulk.end(), to);
    entry.bulk = {to, end};
    entry.is_kept = true;
    to = end;
  }
  kept_.swap(next_kept_);
}

void SendQueue::clear() {
  small_.clear();
  small_begin_ = 0;
  entries_.clear();
  first_ = 0;
}

}  // namespace downpour::transport
