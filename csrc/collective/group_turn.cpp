#include <utility>

#include "csrc/base/error.h"
#include "csrc/collective/group_state.h"

// Calls are done one at a time, in the order in which they were begun: on the caller's own thread when nothing else is under way, which
// spares two changes of thread, else behind what is, by the worker.
namespace downpour::collective {

void Group::State::run(const Call& call, Duration timeout) {
  check_usable();
  check_call(call, options.rank, options.world);
  in_turn([&] { perform(call, timeout); });
}

std::shared_ptr<Operation> Group::State::begin(const Call& call, Duration timeout) {
  check_usable();
  check_call(call, options.rank, options.world);
  return in_background([this, call, timeout] { perform(call, timeout); });
}

void Group::State::run(const std::function<void(Turn& turn)>& work) {
  check_usable();
  in_turn([&] {
    Turn turn(*this);
    work(turn);
  });
}

std::shared_ptr<Operation> Group::State::begin(std::function<void(Turn& turn)> work) {
  check_usable();
  return in_background([this, work = std::move(work)] {
    Turn turn(*this);
    work(turn);
  });
}

void Group::Turn::run(const Call& call, Duration timeout) {
  check_call(call, state_.options.rank, state_.options.world);
  state_.perform(call, timeout);
}

void Group::State::in_turn(const std::function<void()>& work) {
  check_may_wait();
  std::exception_ptr error;
  if (try_turn()) {
    error = outcome_of(work);
    end_turn();
  } else {
    const auto operation = in_background(work);
    operation->wait(TimePoint::max());  // what is under way has deadlines
    error = operation->error();
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

void Group::State::check_may_wait() const {
  DOWNPOUR_CHECK(!is_own_thread(), "rank ", options.rank,
                 ": a call was run inside a turn, or in what follows an operation, and would wait for itself; run it "
                 "through the turn, or begin() it");
}

// Others wait for what this thread does.
bool Group::State::is_own_thread() const {
  const auto self = std::this_thread::get_id();
  const std::lock_guard lock(mutex);
  return self == turn_of || self == worker.get_id() || self == links_thread.get_id();
}

bool Group::State::try_turn() {
  const std::lock_guard lock(mutex);
  if (!queue.empty() || turn_of != std::thread::id()) {
    return false;
  }
  turn_of = std::this_thread::get_id();
  return true;
}

// Of a group that broke during the turn the memory is kept now; nobody else could.
void Group::State::end_turn() {
  std::unique_lock lock(mutex);
  if (why_broken != nullptr) {
    lock.unlock();
    keep_memory();
    lock.lock();
  }
  turn_of = {};
  changed.notify_all();
}

std::shared_ptr<Operation> Group::State::in_background(std::function<void()> work) {
  auto operation = std::make_shared<Operation>();
  const std::lock_guard lock(mutex);
  queue.push_back({std::move(work), operation});
  if (!worker.joinable()) {
    worker = std::thread([this] { do_background(); });
  }
  changed.notify_all();
  return operation;
}

void Group::State::do_background() {
  for (;;) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return turn_of == std::thread::id() && (!queue.empty() || worker_ends); });
    if (queue.empty()) {
      return;
    }
    Background next = std::move(queue.front());
    queue.pop_front();
    turn_of = std::this_thread::get_id();
    lock.unlock();
    const auto error = outcome_of(next.work);
    next.work = nullptr;  // what it kept alive may end before anybody hears that it is done
    end_turn();
    next.operation->finish(error);
  }
}

// Of a group that is broken: what is queued fails. What runs on another thread is that caller's mistake, and is waited for.
void Group::State::end_turns() {
  {
    const std::lock_guard lock(mutex);
    worker_ends = true;
    changed.notify_all();
  }
  if (worker.joinable()) {
    worker.join();
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return turn_of == std::thread::id(); });
}

}  // namespace downpour::collective
