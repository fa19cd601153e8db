#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/ps/server.h"

namespace downpour::ps {

// What a server reports of one of its shards.
struct ShardStatus {
  ShardCounters counters;
  std::uint64_t version = 0;
  std::uint64_t snapshots = 0;
  std::string snapshot_error;
  LeaseTable leases;  // decided
};

// One shard on a loop and a thread of its own.
// Threads: one owner.
class ShardThread {
 public:
  // Makes the shard, restores it, starts the thread. `failed` is called on that thread when an exception ended it.
  // Errors: those of ShardServer and read_snapshot. The references outlive it.
  ShardThread(const Clock& clock, const Agreement& agreement, int shard, int shard_count, const ServerOptions& options,
              Files& files, std::function<void(std::exception_ptr)> failed);
  ~ShardThread();  // ends the thread, saves nothing

  ShardServer& server() { return server_; }  // what any thread may call
  ShardStatus status();                      // as of the last call; asks the thread for a newer one
  void save_and_end();                       // Blocks: until all is on the disk

 private:
  void run();
  void end();
  void look_at_shard();

  transport::Loop loop_;
  ShardServer server_;
  const std::function<void(std::exception_ptr)> failed_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> saving_{false};
  std::mutex mutex_;
  ShardStatus status_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace downpour::ps
