#include "csrc/collective/group.h"

#include <unistd.h>

#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/collective/group_state.h"

namespace downpour::collective {
namespace {

constexpr Duration kLongestSleep = std::chrono::seconds(10);
constexpr Duration kLastBytes =
    std::chrono::seconds(1);  // for the system to take them when a group ends, and for the others

void check_options(const GroupOptions& options) {
  DOWNPOUR_CHECK(options.world >= 1 && options.rank >= 0 && options.rank < options.world,
                 "a group: expected a rank from 0 to ", options.world - 1, " of a world of at least 1, found rank ",
                 options.rank, " of ", options.world);
  DOWNPOUR_CHECK(options.heartbeat > Duration::zero() && options.heartbeat < options.silence,
                 "a group: expected 0 s < heartbeat < silence, found ", seconds(options.heartbeat), " s and ",
                 seconds(options.silence), " s");
}

}  // namespace

std::exception_ptr outcome_of(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// A rank that cannot join tells the others, which would wait for it.
std::unique_ptr<Group> Group::form(Bulletin& bulletin, const GroupOptions& options) {
  check_options(options);
  auto state = std::make_unique<State>(bulletin, options);
  if (const auto why = outcome_of([&] { state->join(); })) {
    state->break_up(why);
    std::rethrow_exception(state->error());  // the first reason
  }
  return std::unique_ptr<Group>(new Group(std::move(state)));
}

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}

// In a forked child there are no threads to end, and what it shares is the parent's. A thread of the group's cannot wait for its own
// end.
Group::~Group() {
  if (state_->pid != getpid()) {
    state_.release();  // NOLINT(bugprone-unused-return-value)
  } else if (state_->is_own_thread()) {
    std::thread([state = std::move(state_)]() mutable { state.reset(); }).detach();
  }
}

int Group::rank() const { return state_->options.rank; }
int Group::world() const { return state_->options.world; }
std::string Group::medium() const { return state_->machines->medium(); }
void Group::run(const Call& call, Duration timeout) { state_->run(call, timeout); }

void Group::run(const std::function<void(Turn& turn)>& work) { state_->run(work); }

std::shared_ptr<Operation> Group::begin(const Call& call, Duration timeout) { return state_->begin(call, timeout); }
std::shared_ptr<Operation> Group::begin(std::function<void(Turn& turn)> work) { return state_->begin(std::move(work)); }
std::shared_ptr<Operation> Group::send(int to, int tag, Bytes bytes) { return state_->send(to, tag, bytes); }

std::shared_ptr<Operation> Group::receive(int from, int tag, MutableBytes bytes) {
  return state_->receive(from, tag, bytes);
}

std::shared_ptr<std::byte> Group::allocate(std::int64_t bytes, Duration timeout) {
  return state_->allocate(bytes, timeout);
}

void Group::abort(const std::string& reason) {
  state_->check_process();
  state_->break_up(std::make_exception_ptr(CommError(concat("the group was aborted: ", reason))));
}

std::exception_ptr Group::error() const {
  const auto forked = outcome_of([this] { state_->check_process(); });  // a lock may be held for ever there
  return forked ? forked : state_->error();
}

std::uint64_t Group::calls() const { return state_->calls; }

// ---- messages ------------------------------------------------------------------------------------------------------------

void Group::State::check_peer(const char* what, int peer) const {
  check_usable();
  DOWNPOUR_CHECK(peer >= 0 && peer < options.world && peer != options.rank, what, ": expected another rank of 0 to ",
                 options.world - 1, ", found ", peer, peer == options.rank ? ", which is this one" : "");
}

std::shared_ptr<Operation> Group::State::send(int to, int tag, Bytes bytes) {
  check_peer("send", to);
  auto operation = std::make_shared<Operation>();
  loop.post([this, to, tag, bytes, operation] {
    messages.send(to, tag, bytes, [operation](std::exception_ptr why) { operation->finish(std::move(why)); });
  });
  return operation;
}

std::shared_ptr<Operation> Group::State::receive(int from, int tag, MutableBytes bytes) {
  if (from != kAnyRank) {
    check_peer("receive", from);
  }
  check_usable();
  DOWNPOUR_CHECK(options.world > 1, "receive: there is no other rank in a group of 1");
  auto operation = std::make_shared<Operation>();
  loop.post([this, from, tag, bytes, operation] {
    messages.receive(from, tag, bytes,
                     [operation](int source, std::exception_ptr why) { operation->finish(std::move(why), source); });
  });
  return operation;
}

// ---- the thread of the links ------------------------------------------------------------------------------------------------

void Group::State::on_links_open() {
  const std::lock_guard lock(mutex);
  open = true;
  changed.notify_all();
}

void Group::State::on_pieces() {
  advance();
  messages.on_room();
}

void Group::State::on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) {
  if (!hears_roll_call(link, type, body) && !hears_comparison(link, type, body)) {
    messages.on_message(link, type, body, bulk);
  }
}

void Group::State::on_left(int rank) {
  if (is_joined && team && machines->of(rank) == my_machine()) {
    team->leave(machines->member(rank));
  }
  messages.leave(rank);
  advance();
}

void Group::State::on_broken(std::exception_ptr why) { break_up(why); }

// What escapes is a bug or a lack of memory; whoever waits hears of it.
void Group::State::serve_links() {
  while (!links_end) {
    if (auto why = outcome_of([this] { loop.run_once(loop.now() + kLongestSleep); })) {
      break_up(why);
    }
  }
}

// Blocks: until that thread, which never waits, has done it.
void Group::State::on_links_thread(const std::function<void()>& action) {
  const auto done = std::make_shared<Operation>();
  loop.post([&action, done] { done->finish(outcome_of(action)); });
  done->wait(TimePoint::max());
  if (const auto error = done->error()) {
    std::rethrow_exception(error);
  }
}

// From here on the loop is this thread's. What was sent has to reach the others before the sockets are closed.
void Group::State::end_links() {
  links_end = true;
  loop.wake();
  links_thread.join();
  const auto why = outcome_of([this] {
    loop.run_once(clock.now());  // what break_up() has posted
    loop.run_until([this] { return links.are_idle(); }, clock.now() + kLastBytes);
    links.close();
    listener.reset();
    loop.run_until([this] { return !loop.is_watching(); }, clock.now() + kLastBytes);
  });
  if (why != nullptr) {
    log_error("rank ", options.rank, ": ending a group of ", options.world, " ranks: ", text_of(why));
  }
}

// ---- endings ------------------------------------------------------------------------------------------------------------------

std::exception_ptr Group::State::error() const {
  const std::lock_guard lock(mutex);
  return why_broken;
}

void Group::State::check_process() const {
  DOWNPOUR_CHECK(pid == getpid(), "this process was forked from process ", pid,
                 ", whose group of ranks it cannot use: make a group after the fork");
}

void Group::State::check_unbroken() const {
  if (const auto why = error()) {
    std::rethrow_exception(why);
  }
}

void Group::State::check_usable() const {
  check_process();
  check_unbroken();
}

// The first reason counts, and goes to every rank. Threads: any.
void Group::State::break_up(const std::exception_ptr& why, Tell whom) {
  {
    const std::lock_guard lock(mutex);
    if (why_broken != nullptr) {
      return;
    }
    why_broken = why;
    changed.notify_all();
  }
  if (is_joined && team) {
    team->abort(why);
  }
  if (whom == Tell::kEveryRank) {
    log_warning("rank ", options.rank, "'s group of ", options.world, " is over: ", text_of(why),
                "; its last calls: ", last_calls());
  }
  loop.post([this, why, whom] {
    if (whom == Tell::kEveryRank) {
      links.abort(text_of(why));
    } else {
      links.fall_silent();
    }
    end_plan(why);
    messages.fail(why);
    if (try_turn()) {
      keep_memory();
      end_turn();
    }
  });
}

Group::State::~State() {
  break_up(std::make_exception_ptr(CommError("the group was destroyed")), Tell::kNobody);
  end_turns();
  if (links_thread.joinable()) {
    end_links();
  }
}

}  // namespace downpour::collective
