#include "csrc/ps/shard_thread.h"

#include <utility>

namespace downpour::ps {
namespace {

constexpr Duration kLongestSleep = std::chrono::seconds(10);

}  // namespace

ShardThread::ShardThread(const Clock& clock, const Agreement& agreement, int shard, int shard_count,
                         const ServerOptions& options, Files& files, std::function<void(std::exception_ptr)> changed)
    : loop_(clock), changed_(std::move(changed)) {
  thread_ = std::thread([this, agreement, shard, shard_count, &options, &files] {
    try {
      make(agreement, shard, shard_count, options, files);
      serve();
    } catch (...) {
      changed_(std::current_exception());
    }
  });
}

ShardThread::~ShardThread() { end(); }

void ShardThread::end() {
  ending_ = true;
  loop_.wake();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ShardThread::save_and_end() {
  saving_ = true;
  end();
  if (ready_) {
    look_at_shard();
  }
}

void ShardThread::make(const Agreement& agreement, int shard, int shard_count, const ServerOptions& options,
                       Files& files) {
  server_ = std::make_unique<ShardServer>(loop_, agreement, shard, shard_count, options.job, options.snapshots, files);
  server_->restore_from_snapshot();
  look_at_shard();
  ready_ = true;
  changed_(nullptr);
}

void ShardThread::serve() {
  while (!ending_) {
    loop_.run_once(loop_.now() + kLongestSleep, server_->spin());
  }
  if (saving_) {
    server_->save();
  }
}

ShardStatus ShardThread::status() {
  ++looks_asked_;
  loop_.post([this] {
    look_at_shard();
    const std::lock_guard lock(mutex_);
    ++status_.looks;
  });
  const std::lock_guard lock(mutex_);
  return status_;
}

void ShardThread::look_at_shard() {
  const std::lock_guard lock(mutex_);
  status_.counters = server_->shard().counters();
  status_.snapshots = server_->snapshots_written();
  status_.snapshot_error = server_->snapshot_error();
  status_.leases = server_->shard().leases();
}

}  // namespace downpour::ps
