#pragma once

#include <cstdint>

namespace downpour::optimizers {

// Which steps end a push and which end with a pull. Pure.
// A push covers n_push steps; under a lease it covers the steps of that lease, which may be fewer at the end of an epoch.
class Cadence {
 public:
  Cadence(std::int64_t n_push, std::int64_t n_fetch) : n_push_(n_push), n_fetch_(n_fetch) {}

  void begin_lease(std::uint64_t lease, std::int64_t steps);  // for the push that begins with the next step
  bool push_ends_now() const;                                 // asked before advance(), for the step that is being made
  bool fetch_ends_now() const { return (steps_ + 1) % n_fetch_ == 0; }
  void advance();

  std::uint64_t lease() const { return lease_; }  // 0: none
  bool push_begun() const { return in_push_ > 0; }
  std::int64_t steps() const { return steps_; }
  void go_on_at(std::int64_t steps, std::int64_t in_push);  // from a checkpoint
  std::int64_t in_push() const { return in_push_; }
  void end_push();  // before its time: finish()

 private:
  std::int64_t n_push_;
  std::int64_t n_fetch_;
  std::int64_t steps_ = 0;        // done
  std::int64_t in_push_ = 0;      // steps of the push that is being gathered
  std::int64_t lease_steps_ = 0;  // 0: no lease
  std::uint64_t lease_ = 0;
};

}  // namespace downpour::optimizers
