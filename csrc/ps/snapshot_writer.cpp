#include "csrc/ps/snapshot_writer.h"

#include <utility>

#include "csrc/base/error.h"
#include "csrc/ps/protocol_member.h"

namespace downpour::ps {

SnapshotWriter::SnapshotWriter(Files& files, std::filesystem::path folder, SnapshotId id, std::uint64_t job,
                               Schema schema, const ShardLayout& layout, Done done)
    : files_(files),
      folder_(std::move(folder)),
      id_(id),
      job_(job),
      schema_(std::move(schema)),
      layout_(layout),
      done_(std::move(done)),
      thread_([this] { run(); }) {}

SnapshotWriter::~SnapshotWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool SnapshotWriter::is_writing() const {
  const std::lock_guard lock(mutex_);
  return writing_;
}

void SnapshotWriter::start(const Shard& shard) {
  DOWNPOUR_INTERNAL_ASSERT(!is_writing());
  shard.copy_state(state_);
  counted_.clear();
  encode(JobCounters{job_, shard.counters()}, counted_);
  {
    const std::lock_guard lock(mutex_);
    writing_ = true;
  }
  changed_.notify_all();
}

void SnapshotWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return writing_ || ending_; });
    if (!writing_) {
      return;
    }
    lock.unlock();
    const std::string error = write();
    lock.lock();
    writing_ = false;
    lock.unlock();
    done_(error);
    lock.lock();
  }
}

std::string SnapshotWriter::write() {
  try {
    write_snapshot(files_, folder_, id_, schema_, layout_, state_, counted_.bytes());
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace downpour::ps
