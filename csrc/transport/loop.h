#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "csrc/base/clock.h"

// One thread's reactor: file descriptors (epoll), timers, pollers for shared-memory rings, and work posted by other threads.
namespace downpour::transport {

// Something that can be looked at without a system call (a ring in shared memory).
class Poller {
 public:
  virtual ~Poller() = default;
  virtual bool poll() = 0;    // handles what is there; true when there was something
  virtual void arm() = 0;     // from now on the peer rings the doorbell (a watched eventfd) when it adds something
  virtual void disarm() = 0;  // no doorbell needed: we look ourselves
};

// Threads: all functions from the one thread that runs it, except post() and wake(), which any thread may call.
class Loop {
 public:
  using Callback = std::function<void()>;
  using TimerId = std::uint64_t;

  explicit Loop(const Clock& clock);  // the clock must outlive the loop
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // `events`: EPOLLIN, EPOLLOUT... The callback may watch and unwatch anything, itself included.
  void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t events)> callback);
  void change(int fd, std::uint32_t events);
  void unwatch(int fd);      // before the fd is closed; pending events of it are not delivered
  bool is_watching() const;  // anything; closed connections that linger are watched until they have ended

  TimerId call_at(TimePoint when, Callback callback);
  void cancel(TimerId timer);  // unknown or fired: no effect

  void add(Poller& poller);  // must be removed before it dies
  void remove(Poller& poller);

  void post(Callback callback);  // runs on the loop's thread, in order
  void wake();                   // ends a run_once() that waits

  // Handles what is ready; when nothing is, looks at the pollers for up to `spin`, then sleeps until something happens or
  // `deadline`. Returns false when the deadline passed with nothing handled. A past deadline handles what is ready.
  // Blocks: until the deadline at most. Never from inside a callback.
  bool run_once(TimePoint deadline, Duration spin = Duration::zero());
  // Until `done()`; false at the deadline.
  bool run_until(const std::function<bool()>& done, TimePoint deadline, Duration spin = Duration::zero());

  TimePoint now() const;
  const Clock& clock() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace downpour::transport
