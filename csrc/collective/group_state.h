#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/collective/group.h"
#include "csrc/collective/links.h"
#include "csrc/collective/machines.h"
#include "csrc/collective/messages.h"
#include "csrc/collective/plan_run.h"
#include "csrc/collective/team_call.h"
#include "csrc/transport/loop.h"
#include "csrc/transport/sealed_memory.h"

namespace downpour::collective {

std::string list_of(const std::vector<int>& ranks);                  // "rank 2", "ranks 1, 3"
std::exception_ptr outcome_of(const std::function<void()>& action);  // what it throws; nullptr: it went well

// What is behind a Group. Three kinds of threads meet here: callers, the worker (calls that nobody waits for), and the one of the links.
struct Group::State final : LinksUser {
  State(Bulletin& bulletin, const GroupOptions& options);
  ~State() override;

  // ---- joining: group_join.cpp ----------------------------------------------------------------------------------------
  void join();
  void listen_and_connect();
  void await_links(TimePoint deadline);
  void learn_machines(TimePoint deadline);
  std::string shared_links();
  std::string pinned(const std::string& key, int rank, TimePoint deadline);
  std::vector<int> without(const std::string& key, const std::vector<int>& ranks);

  // ---- whose turn it is: group_turn.cpp -----------------------------------------------------------------------------------
  void run(const Call& call, Duration timeout);
  void run(const std::function<void(Turn& turn)>& work);
  std::shared_ptr<Operation> begin(const Call& call, Duration timeout);
  std::shared_ptr<Operation> begin(std::function<void(Turn& turn)> work);
  void in_turn(const std::function<void()>& work);
  void check_may_wait() const;
  bool is_own_thread() const;
  bool try_turn();
  void end_turn();
  std::shared_ptr<Operation> in_background(std::function<void()> work);
  void do_background();
  void end_turns();

  // ---- calls: group_calls.cpp -------------------------------------------------------------------------------------------
  void perform(const Call& call, Duration timeout);
  Attempt attempt(const CallShape& shape, Duration timeout);
  void guarded(const std::function<void()>& work);
  [[noreturn]] void give_up(const std::exception_ptr& why);
  void perform_checked(const Call& call, const Attempt& attempt);
  void in_two_levels(const Call& call, const Attempt& attempt);
  void divide(const Call& call) const;
  void among_members(const Call& call, const Attempt& attempt);
  void among_leaders(const Call& call, const Attempt& attempt);
  void over_links(const Call& call, const Attempt& attempt, int position, const std::vector<Link*>& among);

  // ---- memory that ranks share: group_memory.cpp ----------------------------------------------------------------------------
  std::shared_ptr<std::byte> allocate(std::int64_t bytes, Duration timeout);
  static std::shared_ptr<std::byte> own_memory(std::int64_t bytes);
  std::shared_ptr<std::byte> share_arena(std::int64_t bytes, Duration timeout);
  void compare_sizes(std::int64_t bytes, const Attempt& attempt);
  transport::SealedMemory share_memory(const std::string& key, std::uint64_t bytes, TimePoint deadline);
  Fd take(const std::string& place, TimePoint deadline);
  std::vector<std::byte> read(const std::string& key, TimePoint deadline);
  void keep_memory();

  // ---- messages -----------------------------------------------------------------------------------------------------------
  std::shared_ptr<Operation> send(int to, int tag, Bytes bytes);
  std::shared_ptr<Operation> receive(int from, int tag, MutableBytes bytes);
  void check_peer(const char* what, int peer) const;

  // ---- the thread of the links ------------------------------------------------------------------------------------------------
  void on_links_open() override;
  void on_pieces() override;
  void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) override;
  void on_left(int rank) override;
  void on_broken(std::exception_ptr why) override;
  void serve_links();
  void end_links();
  void on_links_thread(const std::function<void()>& action);
  void start_plan(const Call& call, const PieceHeader& header, int position, std::span<Link* const> among,
                  const std::shared_ptr<Operation>& done);
  void advance();
  void end_plan(std::exception_ptr why);
  int drop_plan();

  // ---- who is late: group_roll_call.cpp -----------------------------------------------------------------------------------------
  void name_late(const Attempt& attempt);
  std::vector<int> roll_call(std::uint64_t number);
  void ask_all(std::uint64_t number);
  // ---- who is in another call: group_comparison.cpp -----------------------------------------------------------------------------
  std::uint64_t record(const CallShape& shape);
  std::optional<CallShape> recorded(std::uint64_t number) const;
  std::string last_calls() const;
  void compare_with_all(const PieceHeader& mine);
  bool hears_comparison(Link& link, std::uint16_t type, Bytes body);

  void note_presence(int rank, bool is_present);
  bool is_present_in(std::uint64_t number) const;
  bool hears_roll_call(Link& link, std::uint16_t type, Bytes body);

  // ---- endings ------------------------------------------------------------------------------------------------------------------
  enum class Tell { kEveryRank, kNobody };
  void break_up(const std::exception_ptr& why, Tell whom = Tell::kEveryRank);
  void check_process() const;
  void check_unbroken() const;
  void check_usable() const;
  std::exception_ptr error() const;
  int my_machine() const { return machines->of(options.rank); }

  const GroupOptions options;
  Bulletin& bulletin;
  const int pid;
  SteadyClock clock;

  // Of the links' thread, once it runs.
  transport::Loop loop;
  Links links;
  Messages messages;
  std::unique_ptr<transport::Listener> listener;
  std::unique_ptr<PlanRun> plan;
  std::shared_ptr<Operation> plan_done;
  std::thread links_thread;
  std::atomic<bool> links_end{false};

  // Set while joining, then unchanged.
  std::optional<Machines> machines;
  transport::SealedMemory team_memory;
  std::optional<Team> team;  // the ranks of this machine, where there are others
  std::atomic<bool> is_joined{false};

  // Of whoever has the turn.
  std::vector<Arena> arenas;
  std::vector<std::shared_ptr<transport::SealedMemory>> arena_memory;
  bool memory_kept = false;

  // Guarded by `mutex`; whoever changes what others wait for notifies `changed`.
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::thread::id turn_of;  // nobody's: it is free
  struct Background {
    std::function<void()> work;
    std::shared_ptr<Operation> operation;
  };
  std::deque<Background> queue;
  std::thread worker;
  bool worker_ends = false;
  std::exception_ptr why_broken;
  // At the roll call that is held, as far as they answered; empty: none is held.
  std::vector<std::optional<bool>> present;
  bool open = false;
  std::atomic<std::uint64_t> calls{0};
  std::array<CallShape, 128> history;  // of the last calls, by number
};

}  // namespace downpour::collective
