#include "csrc/ps/lease_book.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "csrc/base/error.h"
#include "csrc/base/random.h"

namespace downpour::ps {

std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed, std::int64_t epoch, Order order) {
  DOWNPOUR_CHECK(samples >= 0 && epoch >= 0, "epoch order: expected samples and epoch of at least 0, found ", samples,
                 " and ", epoch);
  if (order == Order::kShuffled) {
    // Mixed twice: neighbouring seeds of SplitMix64 that differ by its own increment would give shifted copies.
    const std::uint64_t mixed = Random(Random(seed).next() + static_cast<std::uint64_t>(epoch)).next();
    return permutation(samples, mixed);
  }
  std::vector<std::int64_t> positions(static_cast<std::size_t>(samples));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

LeaseBook::LeaseBook(std::int64_t samples, std::int64_t lease_samples, std::int64_t epochs)
    : samples_(samples), lease_samples_(lease_samples), epochs_(epochs) {
  DOWNPOUR_CHECK(samples >= 0, "leases: expected samples of at least 0, found ", samples);
  DOWNPOUR_CHECK(lease_samples >= 1, "leases: expected at least 1 sample a lease, found ", lease_samples);
  DOWNPOUR_CHECK(epochs >= 0 && epochs <= std::numeric_limits<std::int32_t>::max(),
                 "leases: expected between 0 and 2^31 - 1 epochs, found ", epochs);
  const std::int64_t per_epoch = samples / lease_samples + (samples % lease_samples != 0 ? 1 : 0);
  std::int64_t total = 0;
  DOWNPOUR_CHECK(!__builtin_mul_overflow(per_epoch, epochs, &total), "leases: ", per_epoch, " an epoch for ", epochs,
                 " epochs are more than 2^63");
  leases_per_epoch_ = static_cast<std::uint64_t>(per_epoch);
  total_ = static_cast<std::uint64_t>(total);
}

std::optional<Lease> LeaseBook::next(int worker) {
  std::uint64_t id = take_given_back();
  if (id != 0) {
    ++given_again_;
  } else if (next_ <= total_) {
    id = next_++;
  } else {
    return std::nullopt;
  }
  holder_.emplace(id, worker);
  held_[worker].insert(id);
  return lease(id);
}

void LeaseBook::done(std::uint64_t id) {
  if (id < below_ || id >= next_ || !done_above_.insert(id).second) {
    return;
  }
  ++done_count_;
  if (const auto open = holder_.find(id); open != holder_.end()) {
    held_[open->second].erase(id);
    holder_.erase(open);
  }
  raise_watermark();
}

std::int64_t LeaseBook::give_back(int worker) {
  const auto held = held_.find(worker);
  if (held == held_.end()) {
    return 0;
  }
  const auto count = static_cast<std::int64_t>(held->second.size());
  for (const std::uint64_t id : held->second) {
    holder_.erase(id);
    given_back_.push(id);
  }
  held_.erase(held);
  return count;
}

bool LeaseBook::holds(int worker) const {
  const auto held = held_.find(worker);
  return held != held_.end() && !held->second.empty();
}

std::int64_t LeaseBook::epoch() const {
  return all_done() ? epochs_ : static_cast<std::int64_t>((below_ - 1) / leases_per_epoch_);
}

Lease LeaseBook::lease(std::uint64_t id) const {
  const auto place = static_cast<std::int64_t>((id - 1) % leases_per_epoch_);
  Lease lease;
  lease.id = id;
  lease.epoch = static_cast<std::int32_t>((id - 1) / leases_per_epoch_);
  lease.begin = place * lease_samples_;
  lease.end = lease.begin + std::min(lease_samples_, samples_ - lease.begin);
  return lease;
}

std::uint64_t LeaseBook::take_given_back() {
  while (!given_back_.empty()) {
    const std::uint64_t id = given_back_.top();
    given_back_.pop();
    // Its push may have been decided after it was given back, by the word of the worker that had it.
    if (id >= below_ && !done_above_.contains(id)) {
      return id;
    }
  }
  return 0;
}

void LeaseBook::raise_watermark() {
  while (done_above_.erase(below_) != 0) {
    ++below_;
  }
}

}  // namespace downpour::ps
