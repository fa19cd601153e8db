#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "csrc/base/error.h"
#include "csrc/collective/bulletin.h"

// A bulletin in the memory of one process, for ranks that are threads. Threads: any.
namespace downpour::collective {

class TableBulletin final : public Bulletin {
 public:
  void put(const std::string& key, Bytes value) override {
    const std::lock_guard lock(mutex_);
    table_[key].assign(value.begin(), value.end());
    changed_.notify_all();
  }
  std::vector<std::byte> get(const std::string& key, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    DOWNPOUR_CHECK_AS(TimeoutError, changed_.wait_until(lock, deadline, [&] { return table_.contains(key); }),
                      "nobody put '", key, "'");
    return table_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<std::byte>> table_;
};

}  // namespace downpour::collective
