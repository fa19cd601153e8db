#include "optimizers/embedded_job.h"

#include <cmath>
#include <limits>

#include "optimizers/rule_state.h"
#include "optimizers/session.h"

namespace downpour::optimizers {
namespace {

constexpr Duration kBetweenLives = std::chrono::seconds(2);

// With a pull at every step the parameters always are the values.
bool parameters_run_apart(const DownpourOptions& options) { return options.n_fetch() > 1; }

}  // namespace

EmbeddedJob::EmbeddedJob(Replica& replica, const Environment& environment) : replica_(replica) {
  if (environment.role == ProcessRole::kWorker && !environment.coordinator.empty()) {
    member_.emplace(member_options(environment, replica_.options()));
  }
  progress_.loss = std::numeric_limits<double>::quiet_NaN();
  const model::Trainable& trainable = replica_.trainable();
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    make_initial_state(replica_.rule(), replica_.accumulator(), trainable[i].tensor, replica_.optimizer());
    if (parameters_run_apart(replica_.options())) {
      values_.push_back(trainable[i].tensor.detach().clone());
    }
  }
}

void EmbeddedJob::step() {
  replica_.check(values_.empty() ? ValuesLie::kHere : ValuesLie::kElsewhere);
  const bool pushes = replica_.cadence.push_ends_now();
  const bool fetches = replica_.cadence.fetch_ends_now();
  gather();
  if (pushes) {
    push();
  }
  if (!fetches) {
    replica_.local_step();
  } else if (!values_.empty()) {
    fetch();
  }
  replica_.cadence.advance();
  report();
}

// A process that was stopped for long is no member any more, nor is the first of two optimizers in one program. Nothing depends
// on it but what is shown, so it may take its time.
void EmbeddedJob::report() {
  if (!member_) {
    return;
  }
  if (const TimePoint now = SteadyClock().now(); member_->fenced() && now - joined_ > kBetweenLives) {
    member_->rejoin();
    joined_ = now;
  }
  progress_.step = replica_.cadence.steps();
  member_->report(progress_);
}

// Also where nothing is summed: a wrong gradient is found before any parameter has changed.
void EmbeddedJob::gather() {
  for (std::size_t i = 0; i < replica_.trainable().size(); ++i) {
    const torch::Tensor& gradient = replica_.trainable().gradient_in_place(i);
    if (gradient.defined() && sums()) {
      replica_.sum.add(i, gradient);
    }
  }
}

const torch::Tensor& EmbeddedJob::gradient(std::size_t index) const {
  static const torch::Tensor kNone;
  if (sums()) {
    return replica_.sum.present(index) ? replica_.sum[index] : kNone;
  }
  return replica_.trainable()[index].tensor.grad();
}

const torch::Tensor& EmbeddedJob::values(std::size_t index) const {
  return values_.empty() ? replica_.trainable()[index].tensor : values_[index];
}

double EmbeddedJob::clip_scale() {
  const double limit = replica_.options().max_grad_norm();
  if (limit == 0) {
    return 1;
  }
  double squares = 0;
  for (std::size_t i = 0; i < replica_.trainable().size(); ++i) {
    squares += gradient(i).defined() ? squared_norm(gradient(i)) : 0;
  }
  replica_.stats.gradient_norm = std::sqrt(squares);
  return clip_factor(replica_.stats.gradient_norm, limit);
}

void EmbeddedJob::push() {
  auto& hypers = replica_.read_groups();
  const double scale = clip_scale();
  for (ps::Hyper& hyper : hypers) {
    hyper.gradient_scale = scale;
  }
  for (std::size_t i = 0; i < replica_.trainable().size(); ++i) {
    if (gradient(i).defined()) {
      const ps::Hyper& hyper = hypers[replica_.group(i)];
      const RuleState state = advance_state(replica_.rule(), hyper, replica_.accumulator(),
                                            replica_.trainable()[i].tensor, replica_.optimizer());
      update_tensor(replica_.rule(), hyper, state.step, values(i), gradient(i), state.tensors);
    }
  }
  replica_.sum.clear();
  if (book_ && replica_.cadence.lease() != 0) {
    book_->done(replica_.cadence.lease());
  }
}

void EmbeddedJob::fetch() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    replica_.trainable()[i].tensor.copy_(values_[i]);
  }
}

void EmbeddedJob::finish() {
  if (replica_.cadence.push_begun()) {
    push();
    replica_.cadence.end_push();
  }
  fetch();
  report();
}

void EmbeddedJob::agree_samples(std::int64_t size, std::int64_t lease_samples, const SamplesOptions& options) {
  book_.emplace(size, lease_samples, options.epochs());
}

std::optional<ps::Lease> EmbeddedJob::next_lease() { return book_->next(0); }

// Beside torch's own keys, which torch::optim finds as ever: only what a push of several steps needs.
void EmbeddedJob::save(torch::serialize::OutputArchive& archive) const {
  save_state(replica_.rule(), replica_.optimizer(), archive);
  if (!sums() && replica_.options().n_fetch() == 1) {
    return;
  }
  torch::serialize::OutputArchive own(archive.compilation_unit());
  own.write("steps", torch::tensor({replica_.cadence.steps(), replica_.cadence.in_push()}));
  replica_.sum.save(own);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    own.write("values/" + std::to_string(i), values_[i]);
  }
  archive.write("downpour", own);
}

void EmbeddedJob::load(torch::serialize::InputArchive& archive) {
  load_state(replica_.rule(), replica_.optimizer(), archive);
  torch::serialize::InputArchive own;
  if (!archive.try_read("downpour", own)) {
    return;
  }
  torch::Tensor steps;
  own.read("steps", steps);
  replica_.cadence.go_on_at(steps[0].item<std::int64_t>(), steps[1].item<std::int64_t>());
  replica_.sum.load(own);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    own.try_read("values/" + std::to_string(i), values_[i]);
  }
}

}  // namespace downpour::optimizers
