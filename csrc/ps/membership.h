#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/own_stall.h"
#include "csrc/ps/lease_book.h"
#include "csrc/ps/membership_actions.h"

// Who is in the job and what everyone may do: pure decisions (no socket, no clock of its own, no thread). The coordinator
// (coordinator.h) turns messages into these calls and the returned actions into messages.
namespace downpour::ps {

struct MembershipOptions {
  int workers = 1;
  int servers = 0;
  int shards = 0;                                       // 0: one per server
  Duration heartbeat = std::chrono::milliseconds(100);  // how often check() is called
  Duration warn_after = std::chrono::seconds(2);        // silence that is logged
  Duration silence = std::chrono::seconds(10);  // silence after which a worker is fenced, a server declared lost
};

// Threads: one. Every function returns what must be done now. Calls about a member that is not live are ignored, unless they
// say otherwise: its last messages may arrive after it was fenced.
class Membership {
 public:
  explicit Membership(MembershipOptions options);

  // Why this process may not join now: an index out of range (names the range), a live member with the same index in another
  // process (names both), or a worker whose finish() was answered and that has left. nullopt: it may.
  std::optional<std::string> refusal(Target member, std::int64_t pid) const;
  // A member's first word. A worker that joins again gets a higher incarnation (they grow from 1); before that its former life
  // is fenced on all servers and its open leases are given back. A worker's clock starts at the minimum, which is told to it
  // right after SendJoined. A server that joins again gets the schema and all fences again. Errors: Error as refusal().
  Actions join(Target member, std::int64_t pid, TimePoint now);
  // Its connection ended. An orderly worker said goodbye: it has left, and nobody waits for it. Otherwise it is lost: its life is
  // fenced, its leases are given back, and finish() waits for its return, or for gone().
  Actions leave(Target member, bool orderly, TimePoint now);
  // No process of this worker will come again, whatever its end: finish() no longer waits for it. Live or not.
  Actions gone(int worker, TimePoint now);

  void heard(Target member, TimePoint when);        // any message or beat; the past is ignored
  void beat(int worker, const Progress& progress);  // what changed in it counts as progress
  // On a timer, every heartbeat: silence, once logged, once acted upon; none of servers that were told to end. A check that
  // comes far too late shows that this process itself stood still: that time counts as nobody's silence (own_stall.h).
  Actions check(TimePoint now);

  // The first one decides, others are compared with it; the first one with samples adds those where the job has none yet.
  Actions offer(int worker, const Agreement& agreement);
  // Workers hear "agreed" once all servers are ready, those behind a warm start when worker 0 has made its steps; their clocks
  // start at the minimum then. When they are for the first time, the leases that all of them have decided
  // were done in an earlier job on the same snapshots, and are not dealt again; later on the book of this job counts. But a
  // server that was restarted may lack some whose worker has died too, so that nobody sends them again: when all are done such a
  // server is asked (AskDecided), and says here which it has; those missing are dealt again before anybody hears of the end.
  Actions server_ready(int server, const ServerReady& ready);
  Actions tick(int worker, std::int64_t step);  // a worker's clock: steps done; never runs backwards
  // Answered now, or when some are given back, or at the end. A worker that still holds open leases is never kept waiting, since
  // the others may wait for those: where there are none to give it gets an empty answer without `end`.
  Actions ask_leases(int worker, int count);
  Actions leases_done(int worker, std::span<const std::uint64_t> leases);
  // Gives the worker's open leases back. Answered when nobody is left to wait for: every worker of the job, joined or not yet,
  // has asked too, has left, or is gone.
  Actions finish(int worker);

  const std::optional<Agreement>& agreement() const { return agreement_; }
  // Over live workers that step, neither finish nor wait for leases, and under a warm-up those that are still to join.
  std::int64_t minimum_clock() const { return minimum_; }
  std::uint32_t incarnation(int worker) const;  // 0: never joined
  // Why the last offer of the worker's last life was refused; empty: it was not. The same program would offer the same again.
  std::string refused(int worker) const;
  bool live(Target member) const;
  // Every worker finished and left, or is gone: the servers have been told to end.
  bool finished() const { return over_; }
  const LeaseBook* leases() const { return leases_ ? &*leases_ : nullptr; }  // nullptr: nothing agreed yet
  const MembershipOptions& options() const { return options_; }

 private:
  enum class Phase : std::uint8_t { kAbsent, kLive, kLost, kLeft, kGone };
  enum class Finish : std::uint8_t { kNotAsked, kAsked, kAnswered };
  struct Member {
    Phase phase = Phase::kAbsent;
    std::uint32_t incarnation = 0;
    std::int64_t pid = 0;
    TimePoint heard{};
    bool warned = false;
  };
  struct Worker : Member {
    bool awaits_agreement = false;
    std::string refused;
    std::uint32_t fenced_below = 0;
    std::int64_t clock = 0;
    TimePoint progressed{};
    Progress last_beat;
    int wants_leases = 0;        // > 0: waits for so many
    std::uint64_t asked_at = 0;  // order of those that wait
    Finish finish = Finish::kNotAsked;
    bool has_finished() const {
      return phase == Phase::kLeft && finish == Finish::kAnswered;
    }  // and has its final values
  };
  struct Server : Member {
    bool ready = false;
    LeaseTable decided;      // until all servers are ready for the first time
    bool unaudited = false;  // restarted since its leases were compared with the book
    bool asked = false;
    bool reported_silent = false;
  };
  struct Awaited {
    int worker = -1;
    int server = -1;  // where no worker is
    TimePoint progressed{};
  };

  Member* find(Target target);
  const Member* find(Target target) const;
  Worker* live_worker(int index);
  void see(TimePoint now);
  void join_worker(int index, Actions& out);
  void join_server(int index, Actions& out);
  void send_fences(Target server, Actions& out) const;
  void end_life(int index, Actions& out);
  void lose_worker(int index, const std::string& why, Actions& out);
  void leave_server(int index, bool orderly, Actions& out);
  void notice_own_stall(TimePoint now);
  void check_worker(int index, Actions& out);
  void check_server(int index, Actions& out);
  void warn(Target target, Member& member, Actions& out) const;
  std::optional<std::string> objection(const Agreement& agreement) const;
  void decide(int worker, const Agreement& agreement, Actions& out);
  void add_samples(const Agreement& agreement, Actions& out);
  void hear_earlier(Actions& out);
  void audit(int server, const LeaseTable& decided, Actions& out);
  void ask_unaudited(Actions& out);
  bool all_leases_done() const;  // and no server is away or in doubt
  void go_on(Actions& out);
  void refuse(int worker, const std::string& reason, Actions& out);
  Actions settled(Actions out);
  bool servers_ready() const;
  void answer_agreements(Actions& out);
  void answer_leases(int index, Actions& out);
  void answer_waiting_leases(Actions& out);
  bool finishing_waits_for(const Worker& worker) const;
  void answer_finish(Actions& out);
  void raise_minimum(Actions& out);
  void end_job(Actions& out);
  bool is_held_back(const Worker& worker) const;
  bool counts(const Worker& worker) const;
  bool uses_clock() const;
  Awaited slowest() const;
  bool waits_for(const Worker& waiter, const Worker& other) const;
  Awaited awaited_by(const Worker& waiter) const;
  Awaited awaited_server() const;
  void tell_waiting(Actions& out);
  MinimumClock minimum_for(const Awaited& awaited) const;

  MembershipOptions options_;
  std::vector<Worker> workers_;
  std::vector<Server> servers_;
  std::optional<Agreement> agreement_;
  std::uint64_t schema_ = 0;  // its hash
  int decided_by_ = -1;
  std::optional<LeaseBook> leases_;
  std::optional<LeaseTable> earlier_;  // decided by all servers when the job began; nullopt: not all were ready yet
  std::uint64_t questions_ = 0;
  std::int64_t minimum_ = 0;
  bool over_ = false;
  std::optional<OwnStall> stall_;  // from the first call that told the time
  TimePoint now_{};                // of the last call that told it
  TimePoint told_waiting_{};
};

}  // namespace downpour::ps
