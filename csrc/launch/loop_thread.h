#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "csrc/transport/loop.h"

namespace downpour::launch {

// Runs a loop on a thread of its own, until it is destroyed or something throws there.
class LoopThread {
 public:
  // `failed` hears, on that thread, the words of what was thrown; the loop stands still from then on. `loop` outlives this.
  LoopThread(transport::Loop& loop, std::function<void(const std::string& why)> failed);
  ~LoopThread();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  bool failed() const { return failed_; }  // any thread

 private:
  void run();

  transport::Loop& loop_;
  std::function<void(const std::string& why)> tell_;
  std::atomic<bool> over_{false};
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

}  // namespace downpour::launch
