#include "csrc/collective/operation.h"

#include <utility>

#include "csrc/base/log.h"

namespace downpour::collective {
namespace {

void call(const std::function<void()>& callback) {
  try {
    callback();
  } catch (const std::exception& error) {
    log_error("what was to follow a collective call or message failed: ", error.what());
  }
}

}  // namespace

bool Operation::is_done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::exception_ptr Operation::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

int Operation::source() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

bool Operation::wait(TimePoint deadline) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return done_; });
}

void Operation::then(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  call(callback);
}

void Operation::finish(std::exception_ptr error, int source) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    source_ = source;
    callbacks.swap(callbacks_);
  }
  changed_.notify_all();
  for (const auto& callback : callbacks) {
    call(callback);
  }
}

}  // namespace downpour::collective
