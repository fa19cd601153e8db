#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/ps/protocol_member.h"

// The samples of a data set dealt out in leases, epoch by epoch, so that every sample is used exactly once an epoch however
// many workers die on the way. Pure.
namespace downpour::ps {

enum class Order : std::uint8_t { kSequential = 0, kShuffled = 1 };  // values of Agreement::shuffle

// The sample at each position of an epoch; a lease's [begin, end) are positions in it. Every process computes the same.
// Shapes: samples >= 0, epoch >= 0.
std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed, std::int64_t epoch, Order order);

// A lease's id is its plan's tag and its number in the plan, from 1. Shards remember ids in their snapshots: what is dealt again
// to a job that goes on from these keeps its id, and another data set, batch size or order has other ids. The number of epochs
// is no part of it, so that a job may go on for more of them.
constexpr std::uint64_t kMaxLeases = (std::uint64_t{1} << 44) - 1;  // of a plan
constexpr std::uint64_t lease_number(std::uint64_t id) { return id & kMaxLeases; }
// What the ids of the agreement's leases begin after.
std::uint64_t plan_base(const Agreement& agreement);

// Leases of later epochs are given while some of an earlier one are still open (asynchronous training has no barrier there).
// Lease ids depend on nothing but the position: a lease that is given again keeps its id, which is what lets a shard apply it
// only where it is missing. Memory: the leases open, those done before an older one, and the runs of those done in an earlier job.
// Threads: one.
class LeaseBook {
 public:
  // Ids are base + 1 and so on. Shapes: samples >= 0, lease_samples >= 1, epochs >= 0 and below 2^31. The last lease of an epoch
  // may be short. Errors: Error for other sizes, or for more than kMaxLeases.
  LeaseBook(std::int64_t samples, std::int64_t lease_samples, std::int64_t epochs, std::uint64_t base = 0);

  // Those of `leases` that are this plan's were done before anybody came, and are never given. How many they are.
  // Errors: InternalError when a lease has been given.
  std::uint64_t begin_after(const LeaseTable& leases);

  std::optional<Lease> next(int worker);  // nullopt: none to give now; see all_done()
  // Decided by all shards. Repeats are ignored, and so are leases never given. The word of a worker that no longer holds the
  // lease counts too: its push was decided before the lease could be given again.
  void done(std::uint64_t lease);
  std::int64_t give_back(int worker);  // its open leases are given out again, first; how many they are
  LeaseTable done_leases() const;      // by id
  // Those that were done are not: a shard has lost them, and so has everybody who could send them again. They are given again.
  void reopen(const LeaseTable& leases);

  bool all_done() const { return done_count_ == total_; }
  bool holds(int worker) const;  // has leases that are not done
  std::int64_t epoch() const;    // of the oldest lease that is not done; the number of epochs at the end
  std::uint64_t done_count() const { return done_count_; }
  std::uint64_t given_again() const { return given_again_; }
  std::uint64_t total() const { return total_; }  // leases of all epochs
  std::uint64_t base() const { return base_; }

 private:
  Lease lease(std::uint64_t number) const;
  std::uint64_t take_given_back();                           // 0: none
  std::uint64_t behind_earlier(std::uint64_t number) const;  // the first one from there on that was not done earlier
  bool is_done(std::uint64_t number) const;
  void close(std::uint64_t number);  // nobody holds it any more
  void raise_watermark();

  std::int64_t samples_ = 0;
  std::int64_t lease_samples_ = 1;
  std::int64_t epochs_ = 0;
  std::uint64_t leases_per_epoch_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t base_ = 0;
  LeaseTable earlier_;  // done in an earlier job
  // All below are numbers in the plan.
  std::uint64_t next_ = 1;                        // every lease below has been given at least once, or was done earlier
  std::uint64_t below_ = 1;                       // every lease below is done
  std::unordered_set<std::uint64_t> done_above_;  // done ones >= below_
  std::unordered_set<std::uint64_t> reopened_;    // done, and not any more, whatever the three above say
  std::unordered_map<std::uint64_t, int> holder_;  // open leases
  std::unordered_map<int, std::unordered_set<std::uint64_t>> held_;
  std::set<std::uint64_t> given_back_;  // may hold done ones
  std::uint64_t done_count_ = 0;
  std::uint64_t given_again_ = 0;
};

}  // namespace downpour::ps
