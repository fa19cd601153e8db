#include "csrc/ps/push_ledger.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::ps {

std::uint64_t PushLedger::begin(std::uint64_t lease, int shards) {
  if (next_ - first_ == ring_.size()) {
    grow();
  }
  entry(next_) = {lease, shards};
  return next_++;
}

void PushLedger::grow() {
  std::vector<Entry> larger(std::max<std::size_t>(16, 2 * ring_.size()));
  for (std::uint64_t push = first_; push < next_; ++push) {
    larger[push % larger.size()] = entry(push);
  }
  ring_ = std::move(larger);
}

void PushLedger::decided(std::uint64_t push, const PushResult& result) {
  switch (result.verdict) {
    case Verdict::kApplied:
      ++report_.applied;
      staleness_sum_ += static_cast<double>(result.staleness);
      break;
    case Verdict::kStale: ++report_.stale; break;
    case Verdict::kRefused: ++report_.refused; break;
    case Verdict::kDuplicate: ++report_.duplicate; break;
  }
  settle_one(push);
}

void PushLedger::lost(std::uint64_t push) {
  entry(push).lease = 0;  // its samples are not done
  settle_one(push);
}

void PushLedger::settle_one(std::uint64_t push) {
  DOWNPOUR_INTERNAL_ASSERT(push >= first_ && push < ended_ && entry(push).undecided > 0);
  if (--entry(push).undecided == 0 && entry(push).lease != 0) {
    leases_.push_back(entry(push).lease);
  }
  while (first_ < ended_ && entry(first_).undecided == 0) {
    ++first_;
  }
}

StepReport PushLedger::take_report() {
  report_.mean_staleness = report_.applied > 0 ? staleness_sum_ / static_cast<double>(report_.applied) : 0;
  staleness_sum_ = 0;
  return std::exchange(report_, {});
}

std::vector<std::uint64_t> PushLedger::take_leases() { return std::exchange(leases_, {}); }

}  // namespace downpour::ps
