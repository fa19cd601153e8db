#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/ps/server.h"

namespace downpour::ps {

// What a server reports of one of its shards.
struct ShardStatus {
  ShardCounters counters;
  std::uint64_t snapshots = 0;
  std::string snapshot_error;
  LeaseTable leases;        // decided
  std::uint64_t looks = 0;  // how many there were, this one included
};

// One shard on a loop and a thread of its own, which makes it and restores it too: a large one takes longer than a server may be
// silent. Threads: one owner.
class ShardThread {
 public:
  // `changed` is called on that thread: with nullptr when the shard is ready, with what ended the thread when it failed, among
  // them the errors of ShardServer and read_snapshot. The references outlive it.
  ShardThread(const Clock& clock, const Agreement& agreement, int shard, int shard_count, const ServerOptions& options,
              Files& files, std::function<void(std::exception_ptr)> changed);
  ~ShardThread();  // ends the thread, saves nothing

  bool is_ready() const { return ready_; }
  ShardServer& server() { return *server_; }                  // what any thread may call; only when ready
  ShardStatus status();                                       // as of the last call; asks the thread for a newer one
  std::uint64_t looks_asked() const { return looks_asked_; }  // by status(), so far
  void save_and_end();                                        // Blocks: until all is on the disk

 private:
  void make(const Agreement& agreement, int shard, int shard_count, const ServerOptions& options, Files& files);
  void serve();
  void end();
  void look_at_shard();

  transport::Loop loop_;
  std::unique_ptr<ShardServer> server_;  // made by the thread
  const std::function<void(std::exception_ptr)> changed_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> ending_{false};
  std::atomic<bool> saving_{false};
  std::uint64_t looks_asked_ = 0;
  std::mutex mutex_;
  ShardStatus status_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace downpour::ps
