#pragma once

#include <cstdint>
#include <vector>

#include "csrc/ps/client.h"

namespace downpour::ps {

// A worker's pushes over all shards: which are not decided everywhere, and what became of the others. Pure. Threads: one.
class PushLedger {
 public:
  std::uint64_t begin(std::uint64_t lease, int shards);  // numbers from 0; one at a time
  void end() { ended_ = next_; }
  void abandon() { --next_; }
  void decided(std::uint64_t push, const PushResult& result);  // by one shard
  void lost(std::uint64_t push);                               // at one shard: nobody will ever decide it

  int unsettled() const { return static_cast<int>(ended_ - first_); }
  StepReport take_report();
  std::vector<std::uint64_t> take_leases();

 private:
  struct Entry {
    std::uint64_t lease = 0;
    int undecided = 0;  // shards
  };
  Entry& entry(std::uint64_t push) { return ring_[push % ring_.size()]; }
  void settle_one(std::uint64_t push);
  void grow();

  std::vector<Entry> ring_;  // by push modulo its size
  std::uint64_t first_ = 0;  // the oldest that is not decided everywhere
  std::uint64_t ended_ = 0;
  std::uint64_t next_ = 0;
  StepReport report_;
  double staleness_sum_ = 0;
  std::vector<std::uint64_t> leases_;
};

}  // namespace downpour::ps
