#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "csrc/ps/protocol_member.h"

namespace downpour::ps {

// Which life of each worker may speak to a shard, and over which of its connections: lives below a fence are over, and within
// the newest life the newest connection is the live one. A newcomer of a higher incarnation proves that the coordinator has
// ended the lower ones.
// Threads: any.
class LifeTable {
 public:
  struct Life {
    std::uint32_t incarnation = 0;
    std::uint64_t attempt = 0;
    auto operator<=>(const Life&) const = default;
  };
  // Makes it the live one; or says why it is not.
  std::optional<std::string> enter(int worker, Life life);
  void fence(const Fence& fence);
  bool is_live(int worker, Life life) const;
  std::uint64_t changes() const {
    return changes_.load(std::memory_order_acquire);
  }  // grows whenever an answer changes

 private:
  mutable std::mutex mutex_;
  std::unordered_map<int, Life> newest_;  // guarded by mutex_; attempt 0: fenced, nobody of that life has come yet
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace downpour::ps
