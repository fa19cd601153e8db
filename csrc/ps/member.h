#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/base/error.h"
#include "csrc/ps/fenced_error.h"
#include "csrc/ps/protocol_member.h"

namespace downpour::ps {

struct MemberOptions {
  std::uint64_t job = 0;
  int rank = 0;
  std::string coordinator;  // "host:port"
  bool insecure = false;
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration silence = std::chrono::seconds(10);
  Duration call_deadline = std::chrono::seconds(60);
};

// A worker's link to the coordinator. Beats in a thread of its own, with the progress last reported, so that a stopped
// process is noticed and a busy one is not.
// Threads: any; calls of one kind wait for one another, calls of different kinds do not.
// Blocks: at most call_deadline, not counting the time for which this whole process stood still.
// Errors: TimeoutError, PeerLostError (the launcher died: all calls at once, from then on), Error with the coordinator's words
// (schema refused, job aborted, rank taken), FencedError; Error in a forked child, where there is no thread to beat.
class Member {
 public:
  explicit Member(const MemberOptions& options);  // joins
  ~Member();                                      // says goodbye; never waits for anybody

  Joined joined() const;                   // of the current incarnation
  void agree(const Agreement& agreement);  // waits until all servers have made their shards

  void report(const Progress& progress);  // cheap; sent with the next beat
  // This worker has done `step` steps, counted from where it likes: the coordinator's clock for it starts at the minimum in
  // every life. Cheap; sent at once where the agreement bounds the lead or warms up, else with the next beat.
  void tick(std::int64_t step);
  // What the coordinator counts the last tick as: over all lives of this worker and of the others, as it is theirs.
  std::int64_t clock() const;
  // Waits until the slowest live worker has done `step` steps, counted as in tick(). Errors: TimeoutError only when the slowest
  // made no progress for call_deadline; names it.
  void wait_minimum_clock(std::int64_t step);

  // Waits for some, or for the end, as long as the others make progress. A worker that still has leases open may get an empty
  // answer that is not the end: it must first see to those (settle, leases_done) and then ask again.
  Leases ask_leases(int count);
  void leases_done(std::span<const std::uint64_t> leases);  // cheap
  void finish();  // waits for every other worker; no deadline while they make progress

  void check() const;   // very cheap; Errors: as all calls of a job that is over, not FencedError
  bool fenced() const;  // this life is over: rejoin()
  void rejoin();        // a new incarnation in the same process; nothing while it is live

 private:
  struct State;
  void check_process() const;
  std::unique_ptr<State> state_;
};

}  // namespace downpour::ps
