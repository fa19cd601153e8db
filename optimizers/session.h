#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "csrc/base/clock.h"
#include "csrc/base/environment.h"
#include "csrc/ps/client.h"
#include "csrc/ps/connector.h"
#include "csrc/ps/member.h"
#include "optimizers/downpour_options.h"

namespace downpour::optimizers {

// As the launcher's variables and the options say.
ps::MemberOptions member_options(const Environment& environment, const DownpourOptions& options);

// A worker's place in a job with servers: its member and its client, the leases it holds, and what both do about a fence (this
// process was stopped for too long): it joins again under a new incarnation and goes on.
// Threads: one at a time. Blocks: each call at most call_deadline.
// Errors: Error with the coordinator's words (another model, another size of the data set), CommError.
class Session {
 public:
  // Joins and agrees. Errors: as above; the job is left again.
  Session(const Environment& environment, const DownpourOptions& options, ps::Agreement agreement,
          transport::SharedMemory shared_memory);

  const ps::Agreement& agreement() const { return agreement_; }
  void agree(const ps::Agreement& agreement);  // the same with samples
  int rank() const { return environment_.rank; }
  int world_size() const { return member_.joined().workers; }
  ps::Client& client() { return client_; }
  const ps::Client& client() const { return client_; }

  // Runs `call`, which may be begun again, in a new life where this one is fenced meanwhile.
  void outlive_fences(const std::function<void()>& call);

  void report(const ps::Progress& progress) { member_.report(progress); }
  void finish();  // waits for the others

  // The job's clock as far as we are: a later life begins it where the slowest is, so a call that a fence ends is to be thought
  // over. Errors of both: FencedError too.
  std::int64_t clock() const { return member_.clock(); }
  void advance_clock(std::int64_t ticks);
  void wait_for_the_slowest(std::int64_t behind);  // until no live worker's clock is further behind ours

  std::optional<ps::Lease> next_lease();  // nullopt: all epochs are done
  void tell_decided_leases();

 private:
  void live_again();
  void await_fence();
  int leases_to_ask() const;

  Environment environment_;
  Duration call_deadline_;
  ps::Agreement agreement_;
  SteadyClock clock_;
  ps::Member member_;
  std::uint32_t incarnation_;
  ps::NetworkConnector connector_;
  ps::Client client_;
  std::int64_t ticked_ = 0;
  std::deque<ps::Lease> leases_;  // given and not begun
  std::uint64_t last_lease_ = 0;  // its number in the plan
};

}  // namespace downpour::optimizers
