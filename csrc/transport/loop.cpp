#include "csrc/transport/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/fd.h"
#include "csrc/transport/timers.h"

namespace downpour::transport {
namespace {

constexpr int kEventsPerTurn = 64;
// A ring that is never empty must not keep the sockets waiting: they are looked at every so many turns at least.
constexpr int kTurnsWithoutSockets = 16;

Fd checked_fd(int fd, const char* call) {
  DOWNPOUR_CHECK_AS(CommError, fd >= 0, "event loop: ", call, " failed: ", std::strerror(errno));
  return Fd(fd);
}

void drain(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof(count));
}

timespec to_timespec(Duration duration) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return {static_cast<time_t>(whole.count()), static_cast<long>((duration - whole).count())};
}

int wait_coarsely(int epoll, epoll_event* events, Duration timeout) {
  // Rounded up: waking too early would turn the last millisecond into a busy loop.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timeout);
  return ::epoll_wait(epoll, events, kEventsPerTurn,
                      static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000'000)));
}

int wait_for_events(int epoll, epoll_event* events, Duration timeout) {
  if (timeout <= Duration::zero()) {
    return ::epoll_wait(epoll, events, kEventsPerTurn, 0);
  }
  const timespec limit = to_timespec(timeout);
  const int count = ::epoll_pwait2(epoll, events, kEventsPerTurn, &limit, nullptr);
  // Older kernels and some sandboxes do not have it.
  return count < 0 && (errno == ENOSYS || errno == EPERM) ? wait_coarsely(epoll, events, timeout) : count;
}

}  // namespace

struct Loop::State {
  struct Watch {
    int fd = -1;
    bool dead = false;
    std::function<void(std::uint32_t)> callback;
  };

  explicit State(const Clock& the_clock);
  Watch* find(int fd);
  void bury();

  bool poll_pollers();
  bool run_posted();
  bool fire_timers();
  bool timer_is_due() const;
  bool handle_events(Duration timeout);
  void handle_event(const epoll_event& event);
  bool work_without_waiting();
  bool look_around(TimePoint deadline, Duration spin);
  bool spin_pollers(TimePoint until);
  bool sleep(TimePoint deadline);
  void arm();
  void disarm();

  const Clock& clock;
  Fd epoll;
  Fd doorbell;                                  // rung by post() and wake()
  std::vector<std::unique_ptr<Watch>> watches;  // by fd
  std::vector<std::unique_ptr<Watch>> dead_watches;
  std::vector<Poller*> pollers;  // nullptr where one was removed during a turn
  Timers timers;
  bool turning = false;
  int turns_without_sockets = 0;

  std::atomic<bool> rung{false};
  std::mutex mutex;
  std::vector<Callback> posted;  // guarded by mutex
  std::vector<Callback> running;
  std::size_t next_running = 0;
};

Loop::State::State(const Clock& the_clock)
    : clock(the_clock),
      epoll(checked_fd(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      doorbell(checked_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &doorbell;
  DOWNPOUR_CHECK_AS(CommError, ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, doorbell.get(), &event) == 0,
                    "event loop: epoll_ctl failed: ", std::strerror(errno));
}

Loop::State::Watch* Loop::State::find(int fd) {
  const auto index = static_cast<std::size_t>(fd);
  return fd >= 0 && index < watches.size() ? watches[index].get() : nullptr;
}

// Watches and pollers that were removed during a turn leave when it can hold no pointer to them any more.
void Loop::State::bury() {
  if (!turning) {
    std::erase(pollers, nullptr);
    const auto graves = std::exchange(dead_watches, {});
  }
}

bool Loop::State::poll_pollers() {
  bool any = false;
  for (std::size_t i = 0; i < pollers.size(); ++i) {
    any |= pollers[i] != nullptr && pollers[i]->poll();
  }
  return any;
}

bool Loop::State::run_posted() {
  if (next_running == running.size()) {
    if (!rung.load()) {
      return false;
    }
    drain(doorbell.get());  // before the flag falls: whoever raises it again rings again
    rung.store(false);
    running.clear();
    next_running = 0;
    const std::lock_guard lock(mutex);
    running.swap(posted);
  }
  while (next_running < running.size()) {
    const Callback callback = std::move(running[next_running++]);
    callback();
  }
  return true;
}

bool Loop::State::timer_is_due() const {
  const auto next = timers.next();
  return next && *next <= clock.now();
}

bool Loop::State::fire_timers() {
  if (!timers.next()) {
    return false;
  }
  const TimePoint now = clock.now();
  const std::uint64_t newest = timers.newest();
  bool any = false;
  while (const Callback callback = timers.take_due(now, newest)) {
    callback();
    any = true;
  }
  return any;
}

void Loop::State::handle_event(const epoll_event& event) {
  if (event.data.ptr == &doorbell) {
    return drain(doorbell.get());
  }
  auto* watch = static_cast<Watch*>(event.data.ptr);
  if (!watch->dead) {
    watch->callback(event.events);
  }
}

bool Loop::State::handle_events(Duration timeout) {
  turns_without_sockets = 0;
  epoll_event events[kEventsPerTurn];
  int count = wait_for_events(epoll.get(), events, timeout);
  const bool interrupted = count < 0;
  if (interrupted) {
    DOWNPOUR_INTERNAL_ASSERT(errno == EINTR, "epoll_wait: ", std::strerror(errno));
    // A signal, perhaps the end of a long stop: what has come meanwhile is handled before the timers that are due by now.
    count = wait_for_events(epoll.get(), events, Duration::zero());
  }
  for (int i = 0; i < count; ++i) {
    handle_event(events[i]);
  }
  return interrupted || count > 0;  // the owner of the signal wants to look at what it changed
}

// Sockets come before timers: a timer that finds a peer silent must not be the reason why it was not heard.
bool Loop::State::work_without_waiting() {
  const bool polled = poll_pollers();
  const bool ran = run_posted();
  if (!polled && !ran) {
    return false;
  }
  if (++turns_without_sockets >= kTurnsWithoutSockets || timer_is_due()) {
    handle_events(Duration::zero());
    fire_timers();
  }
  return true;
}

bool Loop::State::look_around(TimePoint deadline, Duration spin) {
  if (pollers.empty() || spin <= Duration::zero()) {
    return false;
  }
  const bool handled = handle_events(Duration::zero());
  if (fire_timers() || handled) {
    return true;
  }
  return spin_pollers(std::min(deadline, clock.now() + spin));
}

bool Loop::State::spin_pollers(TimePoint until) {
  while (clock.now() < until) {
    if (poll_pollers() || rung.load(std::memory_order_relaxed) || timer_is_due()) {
      return true;
    }
  }
  return false;
}

void Loop::State::arm() {
  for (std::size_t i = 0; i < pollers.size(); ++i) {
    if (pollers[i] != nullptr) {
      pollers[i]->arm();
    }
  }
}

void Loop::State::disarm() {
  for (std::size_t i = 0; i < pollers.size(); ++i) {
    if (pollers[i] != nullptr) {
      pollers[i]->disarm();
    }
  }
}

bool Loop::State::sleep(TimePoint deadline) {
  arm();
  bool handled = poll_pollers();
  if (!handled) {
    const TimePoint until = std::min(deadline, timers.next().value_or(deadline));
    const TimePoint now = clock.now();
    handled = handle_events(until > now ? until - now : Duration::zero());
  }
  disarm();
  handled |= fire_timers();
  handled |= run_posted();
  return handled;
}

Loop::Loop(const Clock& clock) : state_(std::make_unique<State>(clock)) {}

Loop::~Loop() = default;

void Loop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t events)> callback) {
  DOWNPOUR_CHECK(fd >= 0 && state_->find(fd) == nullptr, "event loop: file descriptor ", fd,
                 " is invalid or already watched");
  auto watch = std::make_unique<State::Watch>();
  watch->fd = fd;
  watch->callback = std::move(callback);
  epoll_event event{};
  event.events = events;
  event.data.ptr = watch.get();
  DOWNPOUR_CHECK_AS(CommError, ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0,
                    "event loop: cannot watch file descriptor ", fd, ": ", std::strerror(errno));
  const auto index = static_cast<std::size_t>(fd);
  if (index >= state_->watches.size()) {
    state_->watches.resize(index + 1);
  }
  state_->watches[index] = std::move(watch);
}

void Loop::change(int fd, std::uint32_t events) {
  State::Watch* watch = state_->find(fd);
  DOWNPOUR_CHECK(watch != nullptr, "event loop: file descriptor ", fd, " is not watched");
  epoll_event event{};
  event.events = events;
  event.data.ptr = watch;
  DOWNPOUR_CHECK_AS(CommError, ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_MOD, fd, &event) == 0,
                    "event loop: cannot change file descriptor ", fd, ": ", std::strerror(errno));
}

void Loop::unwatch(int fd) {
  State::Watch* watch = state_->find(fd);
  if (watch == nullptr) {
    return;
  }
  ::epoll_ctl(state_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  watch->dead = true;
  state_->dead_watches.push_back(std::move(state_->watches[static_cast<std::size_t>(fd)]));
  state_->bury();
}

bool Loop::is_watching() const {
  return std::ranges::any_of(state_->watches, [](const auto& watch) { return watch != nullptr; });
}

Loop::TimerId Loop::call_at(TimePoint when, Callback callback) { return state_->timers.add(when, std::move(callback)); }

void Loop::cancel(TimerId timer) { state_->timers.cancel(timer); }

void Loop::add(Poller& poller) { state_->pollers.push_back(&poller); }

void Loop::remove(Poller& poller) {
  std::ranges::replace(state_->pollers, &poller, nullptr);
  state_->bury();
}

void Loop::post(Callback callback) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->posted.push_back(std::move(callback));
  }
  wake();
}

void Loop::wake() {
  if (!state_->rung.exchange(true)) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(state_->doorbell.get(), &one, sizeof(one));
  }
}

bool Loop::run_once(TimePoint deadline, Duration spin) {
  struct Turn {
    explicit Turn(State& the_state) : state(the_state) { state.turning = true; }
    ~Turn() {
      state.turning = false;
      state.bury();
    }
    State& state;
  };
  DOWNPOUR_INTERNAL_ASSERT(!state_->turning, "a callback runs the loop that called it");
  const Turn turn(*state_);
  return state_->work_without_waiting() || state_->look_around(deadline, spin) || state_->sleep(deadline);
}

bool Loop::run_until(const std::function<bool()>& done, TimePoint deadline, Duration spin) {
  while (!done()) {
    if (!run_once(deadline, spin) || now() >= deadline) {
      return done();
    }
  }
  return true;
}

TimePoint Loop::now() const { return state_->clock.now(); }

const Clock& Loop::clock() const { return state_->clock; }

}  // namespace downpour::transport
