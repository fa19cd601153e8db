#include "csrc/ps/lease_book.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "csrc/base/checksum.h"
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

std::uint64_t plan_base(const Agreement& agreement) {
  Writer plan;
  plan.put(agreement.samples).put(agreement.lease_samples).put(agreement.seed).put(agreement.shuffle);
  constexpr std::uint64_t kTags = std::uint64_t{1} << 17;  // so that ids stay below LeaseTable::kMaxLease
  return (checksum(plan.bytes()) % kTags) * (kMaxLeases + 1);
}

LeaseBook::LeaseBook(std::int64_t samples, std::int64_t lease_samples, std::int64_t epochs, std::uint64_t base)
    : samples_(samples), lease_samples_(lease_samples), epochs_(epochs), base_(base) {
  DOWNPOUR_CHECK(samples >= 0, "leases: expected samples of at least 0, found ", samples);
  DOWNPOUR_CHECK(lease_samples >= 1, "leases: expected at least 1 sample a lease, found ", lease_samples);
  DOWNPOUR_CHECK(epochs >= 0 && epochs <= std::numeric_limits<std::int32_t>::max(),
                 "leases: expected between 0 and 2^31 - 1 epochs, found ", epochs);
  const std::int64_t per_epoch = samples / lease_samples + (samples % lease_samples != 0 ? 1 : 0);
  std::int64_t total = 0;
  DOWNPOUR_CHECK(!__builtin_mul_overflow(per_epoch, epochs, &total) && static_cast<std::uint64_t>(total) <= kMaxLeases,
                 "leases: ", per_epoch, " an epoch for ", epochs, " epochs, expected fewer than 2^44 in all: take a ",
                 "larger batch size or fewer epochs");
  leases_per_epoch_ = static_cast<std::uint64_t>(per_epoch);
  total_ = static_cast<std::uint64_t>(total);
}

std::uint64_t LeaseBook::begin_after(const LeaseTable& leases) {
  DOWNPOUR_INTERNAL_ASSERT(next_ == 1);
  if (total_ == 0) {
    return 0;
  }
  earlier_ = leases.intersection(LeaseTable({base_ + 1, base_ + total_ + 1}));
  done_count_ = earlier_.count();
  next_ = below_ = behind_earlier(1);
  return done_count_;
}

std::uint64_t LeaseBook::behind_earlier(std::uint64_t number) const {
  const auto& runs = earlier_.runs();
  const auto after = std::ranges::upper_bound(runs, base_ + number, {}, &LeaseTable::Run::begin);
  const std::uint64_t end = after == runs.begin() ? 0 : std::prev(after)->end;
  return std::max(number, end - std::min(end, base_));
}

std::optional<Lease> LeaseBook::next(int worker) {
  std::uint64_t number = take_given_back();
  if (number != 0) {
    ++given_again_;
  } else if (next_ <= total_) {
    number = std::exchange(next_, behind_earlier(next_ + 1));
  } else {
    return std::nullopt;
  }
  holder_.emplace(number, worker);
  held_[worker].insert(number);
  return lease(number);
}

void LeaseBook::done(std::uint64_t id) {
  const std::uint64_t number = id - base_;  // of another plan: large
  if (number == 0 || number >= next_ || is_done(number)) {
    return;
  }
  ++done_count_;
  close(number);
  if (reopened_.erase(number) == 0) {
    done_above_.insert(number);
    raise_watermark();
  }
}

bool LeaseBook::is_done(std::uint64_t number) const {
  const bool once = number < below_ || done_above_.contains(number) || earlier_.decided(base_ + number);
  return once && !reopened_.contains(number);
}

void LeaseBook::close(std::uint64_t number) {
  if (const auto open = holder_.find(number); open != holder_.end()) {
    held_[open->second].erase(number);
    holder_.erase(open);
  }
}

LeaseTable LeaseBook::done_leases() const {
  LeaseTable done = below_ > 1 ? LeaseTable({base_ + 1, base_ + below_}) : LeaseTable();
  std::vector<std::uint64_t> others(done_above_.begin(), done_above_.end());
  std::ranges::sort(others);
  for (const std::uint64_t number : others) {
    done.record(base_ + number);
  }
  for (const std::uint64_t number : reopened_) {
    done = done.without(LeaseTable({base_ + number, base_ + number + 1}));
  }
  return done;
}

void LeaseBook::reopen(const LeaseTable& leases) {
  for (const LeaseTable::Run& run : leases.runs()) {
    for (std::uint64_t id = run.begin; id < run.end; ++id) {
      const std::uint64_t number = id - base_;
      if (number > 0 && number < next_ && is_done(number)) {
        reopened_.insert(number);
        given_back_.insert(number);
        --done_count_;
      }
    }
  }
}

std::int64_t LeaseBook::give_back(int worker) {
  const auto held = held_.find(worker);
  if (held == held_.end()) {
    return 0;
  }
  const auto count = static_cast<std::int64_t>(held->second.size());
  for (const std::uint64_t number : held->second) {
    holder_.erase(number);
    given_back_.insert(number);
  }
  held_.erase(held);
  return count;
}

bool LeaseBook::holds(int worker) const {
  const auto held = held_.find(worker);
  return held != held_.end() && !held->second.empty();
}

std::int64_t LeaseBook::epoch() const {
  return all_done() ? epochs_ : std::min(epochs_ - 1, static_cast<std::int64_t>((below_ - 1) / leases_per_epoch_));
}

Lease LeaseBook::lease(std::uint64_t number) const {
  const auto place = static_cast<std::int64_t>((number - 1) % leases_per_epoch_);
  Lease lease;
  lease.id = base_ + number;
  lease.epoch = static_cast<std::int32_t>((number - 1) / leases_per_epoch_);
  lease.begin = place * lease_samples_;
  lease.end = lease.begin + std::min(lease_samples_, samples_ - lease.begin);
  return lease;
}

std::uint64_t LeaseBook::take_given_back() {
  while (!given_back_.empty()) {
    const std::uint64_t number = *given_back_.begin();
    given_back_.erase(given_back_.begin());
    // Its push may have been decided after it was given back, by the word of the worker that had it.
    if (!is_done(number)) {
      return number;
    }
  }
  return 0;
}

void LeaseBook::raise_watermark() {
  while (done_above_.erase(below_) != 0) {
    below_ = behind_earlier(below_ + 1);
  }
}

}  // namespace downpour::ps
