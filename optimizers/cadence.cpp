#include "optimizers/cadence.h"

namespace downpour::optimizers {

void Cadence::begin_lease(std::uint64_t lease, std::int64_t steps) {
  lease_ = lease;
  lease_steps_ = steps;
}

bool Cadence::push_ends_now() const { return in_push_ + 1 >= (lease_steps_ > 0 ? lease_steps_ : n_push_); }

void Cadence::advance() {
  const bool ends = push_ends_now();
  ++steps_;
  ++in_push_;
  if (ends) {
    end_push();
  }
}

void Cadence::end_push() {
  in_push_ = 0;
  lease_steps_ = 0;
  lease_ = 0;
}

void Cadence::go_on_at(std::int64_t steps, std::int64_t in_push) {
  steps_ = steps;
  in_push_ = in_push;
}

}  // namespace downpour::optimizers
