#include "csrc/launch/loop_thread.h"

#include <exception>
#include <utility>

namespace downpour::launch {

LoopThread::LoopThread(transport::Loop& loop, std::function<void(const std::string& why)> failed)
    : loop_(loop), tell_(std::move(failed)), thread_([this] { run(); }) {}

LoopThread::~LoopThread() {
  over_ = true;
  loop_.wake();
  thread_.join();
}

void LoopThread::run() {
  try {
    loop_.run_until([this] { return over_.load(); }, TimePoint::max());
  } catch (const std::exception& error) {
    failed_ = true;
    tell_(error.what());
  }
}

}  // namespace downpour::launch
