#include "csrc/ps/member.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/ps/member_link.h"

namespace downpour::ps {
namespace {

using Phase = MemberBoard::Phase;
using Lock = std::unique_lock<std::mutex>;

// How long a caller whose deadline passed waits for its own thread to have looked at the socket since: after a stop of the whole
// process the true reason may lie there unread.
constexpr Duration kLastLook = std::chrono::seconds(1);

}  // namespace

struct Member::State {
  explicit State(const MemberOptions& the_options)
      : options(the_options), process(::getpid()), link(the_options), board(link.board()) {}

  void wait_joined(Lock& lock);
  // Until `done()`. Errors: as Member's; TimeoutError says `operation` and for whom it waited.
  template <typename Done>
  void wait(Lock& lock, const std::string& operation, const Done& done);
  void raise_if_failed() const;
  void raise_if_over() const;
  TimePoint deadline(TimePoint start, Duration stood_still) const;
  [[noreturn]] void raise_timeout(const std::string& operation, Duration waited) const;
  std::string awaited() const;

  const MemberOptions options;
  const ::pid_t process;
  MemberLink link;
  MemberBoard& board;
  std::mutex joining, agreeing, leasing, finishing;  // one call of a kind at a time
  std::optional<std::uint64_t> leases_asked;  // guarded by `leasing`: in which life, where the answer is still to come
};

Member::Member(const MemberOptions& options) : state_(std::make_unique<State>(options)) {
  state_->link.join();
  Lock lock(state_->board.mutex);
  state_->wait_joined(lock);
}

Member::~Member() {
  if (::getpid() != state_->process) {
    // A forked child has the parent's sockets and not its thread: whatever is torn down here is torn down for the parent.
    [[maybe_unused]] State* left_to_the_parent = state_.release();
  }
}

void Member::check_process() const {
  DOWNPOUR_CHECK(::getpid() == state_->process, state_->link.name(), ": its member object was made in process ",
                 state_->process, " and is used in the forked child ", ::getpid(),
                 "; fork before it is made, or make one in the child");
}

Joined Member::joined() const {
  check_process();
  const Lock lock(state_->board.mutex);
  return state_->board.joined;
}

void Member::agree(const Agreement& agreement) {
  check_process();
  const std::lock_guard one_at_a_time(state_->agreeing);
  MemberBoard& board = state_->board;
  Writer body;
  encode(agreement, body);
  Lock lock(board.mutex);
  state_->raise_if_over();
  board.agreed = false;
  board.refused.reset();
  board.offer = body.take();
  board.ticks_at_once = agreement.max_lead >= 0 || agreement.warm_up_steps > 0;
  state_->link.flush();
  state_->wait(lock, "agreeing on the model while servers make their shards",
               [&board] { return board.agreed || board.refused; });
  DOWNPOUR_CHECK(!board.refused, state_->link.name(), " is refused: ", *board.refused);
}

void Member::report(const Progress& progress) {
  check_process();
  const Lock lock(state_->board.mutex);
  state_->board.progress = progress;
}

void Member::tick(std::int64_t step) {
  check_process();
  const Lock lock(state_->board.mutex);
  state_->raise_if_over();
  state_->board.step = step;
  if (!std::exchange(state_->board.tick_waits, true) && state_->board.ticks_at_once) {
    state_->link.flush();
  }
}

std::int64_t Member::clock() const {
  check_process();
  const Lock lock(state_->board.mutex);
  return state_->board.clock_of(state_->board.step);
}

void Member::wait_minimum_clock(std::int64_t step) {
  check_process();
  MemberBoard& board = state_->board;
  Lock lock(board.mutex);
  const std::int64_t clock = board.clock_of(step);
  state_->wait(lock, "the bound on the lead", [&board, clock] { return board.minimum.clock >= clock; });
}

Leases Member::ask_leases(int count) {
  check_process();
  DOWNPOUR_CHECK(count >= 1, state_->link.name(), ": expected to ask for at least 1 lease, found ", count);
  const std::lock_guard one_at_a_time(state_->leasing);
  MemberBoard& board = state_->board;
  Lock lock(board.mutex);
  state_->raise_if_over();
  // The answer to a question that ran into its deadline may still come, and it holds leases.
  if (state_->leases_asked != board.life) {
    board.leases.reset();
    board.lease_count = count;
    state_->leases_asked = board.life;
    state_->link.flush();
  }
  state_->wait(lock, "asking for leases", [&board] { return board.leases.has_value(); });
  state_->leases_asked.reset();
  return *std::exchange(board.leases, std::nullopt);
}

void Member::leases_done(std::span<const std::uint64_t> leases) {
  check_process();
  const Lock lock(state_->board.mutex);
  state_->raise_if_over();
  std::vector<std::uint64_t>& done = state_->board.done.leases;
  const bool waiting = !done.empty();
  done.insert(done.end(), leases.begin(), leases.end());
  if (!waiting && !done.empty()) {
    state_->link.flush();
  }
}

void Member::finish() {
  check_process();
  const std::lock_guard one_at_a_time(state_->finishing);
  MemberBoard& board = state_->board;
  Lock lock(board.mutex);
  state_->raise_if_over();
  board.finished = false;
  board.ask_finish = true;
  state_->link.flush();
  state_->wait(lock, "finishing the job", [&board] { return board.finished; });
}

void Member::check() const {
  const Lock lock(state_->board.mutex);
  state_->raise_if_failed();
}

bool Member::fenced() const {
  check_process();
  const Lock lock(state_->board.mutex);
  return state_->board.phase == Phase::kFenced;
}

void Member::rejoin() {
  check_process();
  const std::lock_guard one_at_a_time(state_->joining);
  MemberBoard& board = state_->board;
  Lock lock(board.mutex);
  if (board.phase == Phase::kLive) {
    return;
  }
  board.phase = Phase::kJoining;
  ++board.life;
  board.raise = nullptr;
  board.offer.reset();
  board.lease_count = 0;
  board.ask_finish = false;
  board.leases.reset();
  state_->link.join();
  state_->wait_joined(lock);
}

// ---- waiting ------------------------------------------------------------------------------------------------------

void Member::State::raise_if_failed() const {
  if (board.phase == Phase::kFailed) {
    board.raise();
  }
}

void Member::State::raise_if_over() const {
  raise_if_failed();
  DOWNPOUR_CHECK_AS(FencedError, board.phase != Phase::kFenced, link.name(), ": incarnation ", board.joined.incarnation,
                    " was fenced by the coordinator at ", link.coordinator(), "; rejoin() starts the next one");
}

// The connection has the same deadline and the better words: what was tried where, and the system's reason.
void Member::State::wait_joined(Lock& lock) {
  const TimePoint last = std::chrono::steady_clock::now() + options.call_deadline + kLastLook;
  while (board.phase == Phase::kJoining && std::chrono::steady_clock::now() < last) {
    board.changed.wait_until(lock, last);
  }
  raise_if_over();
  DOWNPOUR_CHECK_AS(TimeoutError, board.phase == Phase::kLive, link.name(), ": the coordinator at ", link.coordinator(),
                    " gave no place in the job within ", seconds(options.call_deadline), " s");
}

template <typename Done>
void Member::State::wait(Lock& lock, const std::string& operation, const Done& done) {
  const TimePoint start = std::chrono::steady_clock::now();
  const Duration stood_still = board.stood_still;
  const std::uint64_t life = board.life;
  while (true) {
    raise_if_over();
    DOWNPOUR_CHECK_AS(FencedError, board.life == life, link.name(), ": ", operation,
                      " began in a life that was fenced since");
    if (done()) {
      return;
    }
    const TimePoint limit = deadline(start, stood_still);
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= limit && (board.turned >= limit || now >= limit + kLastLook)) {
      raise_timeout(operation, now - start);
    }
    board.changed.wait_until(lock, now < limit ? limit : limit + kLastLook);
  }
}

TimePoint Member::State::deadline(TimePoint start, Duration stood_still) const {
  return std::max(start + (board.stood_still - stood_still), board.others_progressed) + options.call_deadline;
}

void Member::State::raise_timeout(const std::string& operation, Duration waited) const {
  throw TimeoutError(concat(link.name(), ": ", operation, " was given up after ", seconds(waited), " s: ", awaited()));
}

std::string Member::State::awaited() const {
  const auto since = seconds(std::chrono::steady_clock::now() - board.others_progressed);
  if (board.minimum.slowest >= 0) {
    return concat("worker ", board.minimum.slowest, " has made no progress for ", since, " s");
  }
  if (board.minimum.server >= 0) {
    return concat("server ", board.minimum.server, " has not been heard for ", since, " s");
  }
  return concat("no answer of the coordinator at ", link.coordinator());
}

}  // namespace downpour::ps
