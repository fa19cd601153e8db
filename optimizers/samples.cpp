#include "optimizers/samples.h"

#include <algorithm>

#include "csrc/ps/lease_book.h"
#include "optimizers/errors.h"
#include "optimizers/optimizer_state.h"

namespace downpour {

struct Samples::State {
  DownpourSGD::State& optimizer;
  std::int64_t size;
  SamplesOptions options;
  std::int64_t position = 0, end = 0;  // what is left of the lease, in the epoch's order
  std::int64_t given = 0;              // samples of the batch that is open; 0: none is
  std::int64_t steps = 0;              // the optimizer's, when it was given
  std::int64_t epoch = 0;
  std::int64_t ordered_epoch = -1;
  std::vector<std::int64_t> order;  // of that epoch

  void close_batch();
  bool begin_lease();
  torch::Tensor take(std::int64_t count);
};

void Samples::State::close_batch() {
  if (given == 0) {
    return;
  }
  const std::int64_t made = optimizer.replica.cadence.steps() - steps;
  TORCH_CHECK(made == 1, "Samples::next: expected one step() for the last batch, found ", made,
              "; every batch is one step, so that "
              "each sample counts once");
  optimizer.job->report_samples(given);
  given = 0;
}

bool Samples::State::begin_lease() {
  TORCH_CHECK(!optimizer.replica.cadence.push_begun(),
              "Samples::next: a push with gradients of other samples is still open (n_push = ",
              optimizer.replica.options().n_push(), "); take all batches from Samples");
  const auto lease = optimizers::with_torch_errors([&] { return optimizer.job->next_lease(); });
  if (!lease) {
    return false;
  }
  position = lease->begin;
  end = lease->end;
  epoch = lease->epoch;
  optimizer.replica.cadence.begin_lease(lease->id, (end - position + options.batch_size() - 1) / options.batch_size());
  if (ordered_epoch != epoch) {
    // A lease of an earlier epoch may come again: its order is made once more, which is cheaper than kept.
    order =
        ps::epoch_order(size, options.seed(), epoch, options.shuffle() ? ps::Order::kShuffled : ps::Order::kSequential);
    ordered_epoch = epoch;
  }
  return true;
}

torch::Tensor Samples::State::take(std::int64_t count) {
  const torch::Tensor indices = torch::empty({count}, torch::kInt64);
  std::copy_n(order.begin() + position, count, indices.data_ptr<std::int64_t>());
  position += count;
  return indices;
}

Samples::Samples(DownpourSGD& optimizer, int64_t size, SamplesOptions options) {
  TORCH_CHECK(size >= 1, "Samples: expected a data set of at least 1 sample, found ", size);
  TORCH_CHECK(options.batch_size() >= 1, "Samples: batch_size: expected at least 1, found ", options.batch_size());
  TORCH_CHECK(options.epochs() >= 0, "Samples: epochs: expected at least 0, found ", options.epochs());
  DownpourSGD::State& state = *optimizer.job_;
  state.check_usable("Samples");
  options.batch_size(std::min(options.batch_size(), size));
  const std::int64_t lease = std::min(options.batch_size() * state.replica.options().n_push(), size);
  optimizers::with_torch_errors([&] { state.job->agree_samples(size, lease, options); });
  state_ = std::unique_ptr<State>(new State{state, size, std::move(options), 0, 0, 0, 0, 0, -1, {}});
}

Samples::~Samples() = default;

std::optional<Samples::Batch> Samples::next() {
  State& state = *state_;
  state.optimizer.check_usable("Samples::next");
  state.close_batch();
  if (state.position == state.end && !state.begin_lease()) {
    return std::nullopt;
  }
  state.given = std::min(state.options.batch_size(), state.end - state.position);
  state.steps = state.optimizer.replica.cadence.steps();
  return Batch{state.take(state.given), state.epoch};
}

int64_t Samples::epoch() const { return state_->epoch; }

}  // namespace downpour
