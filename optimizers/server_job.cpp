#include "optimizers/server_job.h"

#include <cmath>
#include <limits>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/ps/fenced_error.h"
#include "optimizers/rule_state.h"

namespace downpour::optimizers {
namespace {

ps::Agreement agreement_of(const Replica& replica, const SharedBuffers& buffers) {
  const DownpourOptions& options = replica.options();
  ps::Agreement agreement;
  agreement.schema = replica.schema();
  buffers.add_to(agreement.schema);
  agreement.max_staleness = options.max_staleness().value_or(-1);
  agreement.max_lead = options.max_lead().value_or(-1);
  agreement.warm_start_steps = static_cast<std::int32_t>(options.warm_start_steps());
  agreement.warm_up_steps = static_cast<std::int32_t>(options.warm_up_steps());
  return agreement;
}

}  // namespace

ServerJob::ServerJob(Replica& replica, const Environment& environment, transport::SharedMemory shared_memory)
    : replica_(replica),
      buffers_(replica, environment),
      session_(environment, replica.options(), agreement_of(replica, buffers_), shared_memory),
      sent_(replica.trainable().size()) {
  session_.outlive_fences([this] { rank() == 0 ? offer_values() : client().open(); });
  fetch();
  if (is_synchronous()) {
    meet_others(Half::kPulled);
  }
}

// Only the first offer of a job counts: a restarted rank 0 adopts what the job has come to.
void ServerJob::offer_values() {
  torch::Tensor held;  // a copy of values that do not lie dense, while they are read
  const auto values = [&](std::uint32_t i) -> const void* {
    held = i < parameters() ? replica_.trainable().values(i) : buffers_.values(i - parameters());
    return held.const_data_ptr();
  };
  const std::vector<double> accumulators(session_.agreement().schema.groups, replica_.accumulator());
  if (!client().initialise(values, accumulators)) {
    buffers_.note_values_of_before();
  }
}

// As long as the job warms up, by its clock and not by our own steps: a worker that comes back joins in where the others are, and
// does not wait for a warm-up that they are past.
bool ServerJob::is_synchronous() const {
  const std::int64_t steps = replica_.options().warm_up_steps();
  return steps > 0 && session_.clock() < 2 * steps + 1;
}

// Where there is a warm-up a step is two ticks: the clock is even when we have pushed, odd when we have pulled, first of all the
// initial values. A life that begins later may find its half done by the others.
void ServerJob::meet_others(Half half) {
  session_.outlive_fences([&] {
    const bool is_there = (session_.clock() % 2 == 0) == (half == Half::kPushed);
    session_.advance_clock(is_there ? 0 : 1);
    session_.wait_for_the_slowest(0);
  });
}

// ---- a step: [ps 1/7] -----------------------------------------------------------------------------------------------

void ServerJob::step() {
  if (trouble_) {
    std::rethrow_exception(std::exchange(trouble_, nullptr));
  }
  replica_.check(ValuesLie::kElsewhere);
  check_gradients();
  note_verdicts();
  const bool pushes = replica_.cadence.push_ends_now();
  const bool fetches = replica_.cadence.fetch_ends_now();
  const bool synchronous = pushes && is_synchronous();
  std::vector<ps::Hyper> groups;
  if (pushes) {
    groups = complete_push(Newest::kApart);
  } else {
    hold_back();
  }
  replica_.cadence.advance();  // the gradient counts from here on, whatever else the step meets
  if (pushes) {
    end_push(groups);
  }
  synchronous ? complete_synchronous_step() : complete_step(fetches);
  report();
}

void ServerJob::check_gradients() const {
  for (std::size_t i = 0; i < parameters(); ++i) {
    replica_.trainable().gradient_in_place(i);
  }
}

// Under a later push's base version, which is that of its oldest gradient.
void ServerJob::hold_back() {
  client().keep_base_version();
  for (std::size_t i = 0; i < parameters(); ++i) {
    if (const torch::Tensor gradient = replica_.trainable().gradient(i); gradient.defined()) {
      replica_.sum.add(i, gradient);
    }
  }
}

torch::Tensor ServerJob::outgoing(std::size_t index, Newest newest) const {
  const torch::Tensor own = newest == Newest::kApart ? replica_.trainable().gradient(index) : torch::Tensor();
  if (!replica_.sum.present(index)) {
    return own;
  }
  return own.defined() ? replica_.sum[index] + own : replica_.sum[index];
}

void ServerJob::begin_push() {
  if (!push_begun_) {
    session_.outlive_fences([this] { client().begin_push(replica_.cadence.lease()); });
    push_begun_ = true;
  }
}

void ServerJob::send(std::size_t index, const torch::Tensor& gradient) {
  if (replica_.options().max_grad_norm() > 0) {
    squared_norm_ += squared_norm(gradient);
  }
  client().add_gradient(static_cast<std::uint32_t>(index), gradient.const_data_ptr());
  sent_[index] = true;
}

// All but the push's end: until then nothing counts and step() may be called again.
std::vector<ps::Hyper> ServerJob::complete_push(Newest newest) {
  begin_push();
  for (std::size_t i = 0; i < parameters(); ++i) {
    if (const torch::Tensor gradient = sent_[i] ? torch::Tensor() : outgoing(i, newest); gradient.defined()) {
      send(i, gradient);
    }
  }
  std::vector<ps::Hyper> groups = scaled_groups();
  buffers_.push(client(), parameters());  // nothing fails from here on: it forgets what it has told
  push_begun_ = false;
  sent_.assign(sent_.size(), false);
  squared_norm_ = 0;
  replica_.sum.clear();
  return groups;
}

void ServerJob::end_push(const std::vector<ps::Hyper>& groups) {
  try {
    client().end_push(groups);
  } catch (const ps::FencedError&) {
    // It counts as ended and is kept; whoever waits for its verdict joins again.
  }
}

// Clipping, and the mean over the workers of a synchronous step, are one factor that the rule multiplies the gradient by.
std::vector<ps::Hyper> ServerJob::scaled_groups() {
  double scale = is_synchronous() ? 1.0 / world_size() : 1.0;
  if (const double limit = replica_.options().max_grad_norm(); limit > 0) {
    replica_.stats.gradient_norm = std::sqrt(squared_norm_);
    scale *= clip_factor(replica_.stats.gradient_norm, limit);
  }
  std::vector<ps::Hyper> groups = replica_.read_groups();
  for (ps::Hyper& group : groups) {
    ps::check_hyper(replica_.rule(), ps::state_buffers(session_.agreement().schema), group);
    group.gradient_scale = scale;
  }
  buffers_.add_to(groups);
  return groups;
}

// Gradients of the steps before, and this step's as long as it is the push's last, leave together.
void ServerJob::gradient_ready(std::size_t index) {
  if (trouble_ || sent_[index] || !replica_.cadence.push_ends_now()) {
    return;
  }
  const torch::NoGradGuard no_grad;
  try {
    const torch::Tensor gradient = outgoing(index, Newest::kApart);
    begin_push();
    send(index, gradient);
  } catch (...) {
    trouble_ = std::current_exception();
  }
}

void ServerJob::forget_gradients() {
  client().abandon_push();
  trouble_ = nullptr;
  push_begun_ = false;
  sent_.assign(sent_.size(), false);
  squared_norm_ = 0;
}

// ---- pulls: [ps 7/7] ------------------------------------------------------------------------------------------------

void ServerJob::adopt_slice(const ps::Slice& slice, std::int64_t begin, std::int64_t count, const void* source) {
  if (slice.parameter < parameters()) {
    replica_.trainable().copy_in(slice.parameter, begin, count, source);
  } else {
    buffers_.adopt(slice.parameter - parameters(), begin, count, source);
  }
}

void ServerJob::adopt() {
  buffers_.before_pull();
  session_.outlive_fences([this] {
    if (!client().pull_begun()) {  // it was lost with its connections
      client().begin_pull();
    }
    client().finish_pull([this](const ps::Slice& slice, std::int64_t begin, std::int64_t count, const void* source) {
      adopt_slice(slice, begin, count, source);
    });
  });
  buffers_.after_pull();
}

void ServerJob::fetch() {
  const torch::NoGradGuard no_grad;
  if (client().pull_begun()) {
    adopt();  // begun earlier, so its values are older than now
  }
  client().begin_pull();
  adopt();
}

// A pull goes behind the push in order, so its values contain it.
void ServerJob::complete_step(bool fetches) {
  const bool ahead = replica_.options().prefetch();
  if (client().pull_begun()) {
    adopt();
  }
  if (fetches) {
    client().begin_pull();
  }
  if (fetches && !ahead) {
    adopt();
    settle();
  } else {
    replica_.local_step();
  }
  session_.outlive_fences([this] { session_.advance_clock(ticks_per_step()); });
  if (const auto lead = replica_.options().max_lead()) {
    session_.outlive_fences([&] { session_.wait_for_the_slowest(*lead * ticks_per_step()); });
  }
}

// All push, then all pull one version; nobody pushes the next step before all have pulled this one.
void ServerJob::complete_synchronous_step() {
  settle();
  meet_others(Half::kPushed);
  fetch();
  meet_others(Half::kPulled);
}

// ---- what became of pushes ------------------------------------------------------------------------------------------

// Never waits: between pulls, pushes stay under way while the next gradients are computed.
void ServerJob::note_verdicts() {
  client().look();
  if (client().unsettled() == 0) {
    settle();
  }
}

void ServerJob::settle() {
  ps::StepReport report;
  session_.outlive_fences([&] { report = client().settle(); });
  if (report.applied + report.stale + report.refused + report.duplicate > 0) {
    replica_.stats.mean_staleness = report.mean_staleness;
    replica_.stats.stale = static_cast<std::int64_t>(report.stale);
    replica_.stats.refused = static_cast<std::int64_t>(report.refused);
  }
  if (report.refused > 0 && !std::exchange(warned_refused_, true)) {
    log_warning("worker ", rank(),
                ": a gradient held what is no finite number, so its push was refused; so are the next ones, "
                "counted in the summary. Where all are, the model has diverged: a lower learning rate, clipping or a "
                "warm start help");
  }
  session_.tell_decided_leases();
}

void ServerJob::report() {
  const ps::ClientCounters& counters = client().counters();
  progress_.step = replica_.cadence.steps();
  progress_.mean_staleness = replica_.stats.mean_staleness;
  progress_.pushed_bytes = counters.pushed_bytes;
  progress_.pulled_bytes = counters.pulled_bytes;
  progress_.lost = counters.lost;
  session_.report(progress_);
}

void ServerJob::finish() {
  const torch::NoGradGuard no_grad;
  forget_gradients();  // of a backward that no step() followed
  if (replica_.cadence.push_begun()) {
    const std::vector<ps::Hyper> groups = complete_push(Newest::kSummed);
    replica_.cadence.end_push();
    end_push(groups);
  }
  settle();
  // From here on nobody looks after the servers until all have finished, so these must not need anybody's replay.
  session_.outlive_fences([this] { client().save(); });
  report();
  session_.finish();
  fetch();
}

void ServerJob::agree_samples(std::int64_t size, std::int64_t lease_samples, const SamplesOptions& options) {
  ps::Agreement agreement = session_.agreement();
  agreement.samples = size;
  agreement.lease_samples = lease_samples;
  agreement.epochs = options.epochs();
  agreement.seed = options.seed();
  agreement.shuffle = options.shuffle() ? 1 : 0;
  session_.agree(agreement);
}

// The servers keep the state; what a program can carry over are the groups' options.
void ServerJob::save(torch::serialize::OutputArchive& archive) const {
  save_state(replica_.rule(), replica_.optimizer(), archive);
}

void ServerJob::load(torch::serialize::InputArchive& archive) {
  load_state(replica_.rule(), replica_.optimizer(), archive);
  replica_.optimizer().state().clear();
}

}  // namespace downpour::optimizers
