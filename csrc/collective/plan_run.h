#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/collective/call.h"
#include "csrc/collective/link.h"
#include "csrc/collective/plan.h"

namespace downpour::collective {

// One call of one rank under way over its links: obeys the plan, step by step, whenever it is asked to advance.
// Threads: that of the links' loop. Blocks: never. Owns: scratch memory; the call's memory and the links outlive it.
class PlanRun {
 public:
  // `call` is among the ranks at the other ends of `links` and this one, which is number `rank` of them and whose own entry is not
  // looked at; `header`: what ranks compare, that of the group's call of which this one may be a part.
  PlanRun(const Call& call, const PieceHeader& header, int rank, std::span<Link* const> links);

  ~PlanRun();  // however it ended: from here on the call's memory is the caller's again
  PlanRun(const PlanRun&) = delete;
  PlanRun& operator=(const PlanRun&) = delete;

  // Goes on as far as it gets now; true when all is done. Errors: Error naming both calls when a rank is in another one; PeerLostError
  // when one that is still needed has ended its group. After either the run is over, and the ranks are no longer in step.
  bool advance();
  // The rank whose part is missing; Step::kNobody when done.
  int waits_for() const;

 private:
  std::int64_t element_bytes() const { return size_bytes(call_.shape.type); }
  void copy_own();
  void begin_step();
  bool send_some();
  bool receive_some();
  void arrive(Bytes bytes);
  template <class Visit>
  void for_each_run(const Slice& slice, std::int64_t begin, std::int64_t count, const Visit& visit) const;
  std::span<const MutableBytes> memory_of(Buffer buffer) const;

  Call call_;
  PieceHeader header_;
  int rank_;
  std::span<Link* const> links_;
  Plan plan_;
  std::vector<MutableBytes> inputs_;
  std::vector<std::byte> scratch_bytes_;
  MutableBytes scratch_;
  std::size_t step_ = 0;
  std::int64_t sent_ = 0;      // elements of this step
  std::int64_t received_ = 0;  // elements of this step
  bool sent_all_ = false, received_all_ = false;
};

}  // namespace downpour::collective
