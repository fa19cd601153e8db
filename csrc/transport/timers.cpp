#include "csrc/transport/timers.h"

#include <algorithm>
#include <utility>

namespace downpour::transport {

bool Timers::later(const Timer& a, const Timer& b) { return a.when != b.when ? a.when > b.when : a.id > b.id; }

std::uint64_t Timers::add(TimePoint when, Callback callback) {
  heap_.push_back({when, ++newest_, std::move(callback)});
  std::ranges::push_heap(heap_, later);
  return newest_;
}

void Timers::cancel(std::uint64_t id) {
  const auto found = std::ranges::find(heap_, id, &Timer::id);
  if (found == heap_.end()) {
    return;
  }
  // The callback dies last: its captures may cancel timers too.
  const Timer cancelled = std::move(*found);
  if (&*found != &heap_.back()) {
    *found = std::move(heap_.back());
  }
  heap_.pop_back();
  std::ranges::make_heap(heap_, later);
}

std::optional<TimePoint> Timers::next() const {
  return heap_.empty() ? std::nullopt : std::optional(heap_.front().when);
}

Timers::Callback Timers::take_due(TimePoint now, std::uint64_t newest) {
  if (heap_.empty() || heap_.front().when > now || heap_.front().id > newest) {
    return nullptr;
  }
  std::ranges::pop_heap(heap_, later);
  Callback callback = std::move(heap_.back().callback);
  heap_.pop_back();
  return callback;
}

}  // namespace downpour::transport
