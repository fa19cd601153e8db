#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "csrc/base/file.h"
#include "csrc/ps/shard.h"
#include "csrc/ps/snapshot.h"

namespace downpour::ps {

// Writes snapshots in a thread of its own, one after another.
// Threads: one owner; `done` is called on the writer's thread. Owns: one copy of the shard's state, used again and again.
class SnapshotWriter {
 public:
  // `error`: empty when the snapshot is good.
  using Done = std::function<void(const std::string& error)>;
  SnapshotWriter(Files& files, std::filesystem::path folder, SnapshotId id, std::uint64_t job, Schema schema,
                 const ShardLayout& layout, Done done);  // files and layout outlive it
  ~SnapshotWriter();                                     // waits for the one being written

  // Takes a copy of the shard now and writes it. Errors: InternalError while one is being written.
  void start(const Shard& shard);
  bool is_writing() const;

 private:
  void run();
  std::string write();

  Files& files_;
  const std::filesystem::path folder_;
  const SnapshotId id_;
  const std::uint64_t job_;
  const Schema schema_;
  const ShardLayout& layout_;
  const Done done_;
  Writer counted_;      // with state_
  Shard::State state_;  // the writing thread's while writing_, else the owner's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool writing_ = false;  // guarded by mutex_
  bool ending_ = false;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace downpour::ps
