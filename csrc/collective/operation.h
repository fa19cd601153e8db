#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "csrc/base/clock.h"

namespace downpour::collective {

// A call or a message that is under way or done. Threads: any.
class Operation {
 public:
  bool is_done() const;
  std::exception_ptr error() const;  // nullptr while it is under way, or when it went well
  int source() const;                // of a message that was received: from which rank

  // False when it is not done at the deadline; it goes on then. Throws nothing of the operation's own.
  bool wait(TimePoint deadline) const;
  // `callback` runs once, when it is done: at once on this thread, or later on the one that finishes it, for which others wait: it
  // must not block. What it throws is logged.
  void then(std::function<void()> callback);

  void finish(std::exception_ptr error, int source = -1);  // once

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  int source_ = -1;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace downpour::collective
