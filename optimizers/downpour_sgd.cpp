#include "optimizers/downpour_sgd.h"

#include <unistd.h>

#include "csrc/base/environment.h"
#include "csrc/base/stacks.h"
#include "csrc/model/gradient_hooks.h"
#include "csrc/ps/agreement.h"
#include "optimizers/departures.h"
#include "optimizers/embedded_job.h"
#include "optimizers/errors.h"
#include "optimizers/optimizer_state.h"
#include "optimizers/server_job.h"

namespace downpour {
namespace {

using optimizers::Training;

std::unique_ptr<optimizers::Job> make_job(optimizers::Replica& replica) {
  const Environment environment = read_environment();
  if (environment.role != ProcessRole::kAlone) {
    print_stacks_on_signal();
  }
  TORCH_CHECK(environment.role != ProcessRole::kServer,
              "DownpourSGD: this process was started as a server (DOWNPOUR_ROLE)");
  // Several workers without a server are a mistake. Where there is a coordinator it is the one to say so, when they offer the
  // model: then the launcher knows that a restart would not help.
  const bool mistaken = environment.world_size > 1 && environment.servers == 0;
  TORCH_CHECK(!mistaken || (environment.role == ProcessRole::kWorker && !environment.coordinator.empty()),
              "DownpourSGD: ", ps::without_a_server(environment.world_size));
  if (environment.role == ProcessRole::kAlone || (environment.servers == 0 && !mistaken)) {
    return std::make_unique<optimizers::EmbeddedJob>(replica, environment);
  }
  return std::make_unique<optimizers::ServerJob>(replica, environment);
}

}  // namespace

DownpourSGD::State::State(Training training, const Rule& rule, DownpourOptions options, DownpourSGD& optimizer)
    : replica(std::move(training), rule, std::move(options), optimizer),
      departures(replica.trainable()),
      pid(::getpid()) {
  job = optimizers::with_torch_errors([&] { return make_job(replica); });
  if (replica.options().overlap()) {
    hooks = std::make_unique<model::GradientHooks>(replica.trainable().tensors(),
                                                   [this](std::size_t index) { gradient_ready(index); });
  }
}

// A forked child's backward is nobody's gradient.
void DownpourSGD::State::gradient_ready(std::size_t index) {
  if (::getpid() != pid) {
    return;
  }
  departures.mark(index);
  job->gradient_ready(index);
}

void DownpourSGD::State::check_process(const char* operation) const {
  TORCH_CHECK(::getpid() == pid, "DownpourSGD::", operation, ": this is a forked child of process ", pid,
              ", which made the "
              "optimizer; its connections and threads cannot be used here. Make the optimizer after fork, or exec");
}

void DownpourSGD::State::check_usable(const char* operation) const {
  check_process(operation);
  TORCH_CHECK(!finished, "DownpourSGD::", operation, ": the job is over, finish() was called");
}

// Whatever fails, the next backward starts a whole push: what has left before it counts no more.
void DownpourSGD::State::step() {
  try {
    departures.check();
    optimizers::with_torch_errors([&] { job->step(); });
  } catch (...) {
    departures.clear();
    job->forget_gradients();
    replica.stats.step = replica.cadence.steps();  // the push may have left before
    throw;
  }
  departures.clear();
  replica.stats.step = replica.cadence.steps();
}

DownpourSGD::DownpourSGD(torch::nn::Module& module, Rule rule, DownpourOptions options)
    : DownpourSGD(Training::of(module), std::move(rule), std::move(options)) {}

DownpourSGD::DownpourSGD(torch::nn::Module& module, std::vector<torch::optim::OptimizerParamGroup> groups, Rule rule,
                         DownpourOptions options)
    : DownpourSGD(Training::of(module, std::move(groups)), std::move(rule), std::move(options)) {}

DownpourSGD::DownpourSGD(std::vector<torch::Tensor> parameters, Rule rule, DownpourOptions options)
    : DownpourSGD(Training::of(std::move(parameters)), std::move(rule), std::move(options)) {}

DownpourSGD::DownpourSGD(std::vector<torch::optim::OptimizerParamGroup> groups, Rule rule, DownpourOptions options)
    : DownpourSGD(Training::of(std::move(groups)), std::move(rule), std::move(options)) {}

DownpourSGD::DownpourSGD(Training&& training, Rule rule, DownpourOptions options)
    : torch::optim::Optimizer(training.groups, optimizers::checked_defaults(rule)),
      job_(std::make_unique<State>(std::move(training), rule, std::move(options), *this)) {}

DownpourSGD::~DownpourSGD() {
  if (::getpid() != job_->pid) {
    // The connections are the parent's, and a goodbye from here would end them.
    job_.release();  // NOLINT(bugprone-unused-return-value)
  }
}

torch::Tensor DownpourSGD::step(LossClosure closure) {
  job_->check_usable("step");
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  job_->step();
  return loss;
}

void DownpourSGD::finish() {
  job_->check_usable("finish");
  optimizers::with_torch_errors([&] { job_->job->finish(); });
  job_->finished = true;
}

void DownpourSGD::fetch() {
  job_->check_usable("fetch");
  optimizers::with_torch_errors([&] { job_->job->fetch(); });
}

DownpourSGD::NoSync::NoSync(DownpourSGD& optimizer) : optimizer_(optimizer) {
  if (optimizer_.job_->hooks != nullptr) {
    optimizer_.job_->hooks->pause();
  }
}

DownpourSGD::NoSync::~NoSync() {
  if (optimizer_.job_->hooks != nullptr) {
    optimizer_.job_->hooks->resume();
  }
}

void DownpourSGD::report_loss(double loss) { job_->job->report_loss(loss); }
void DownpourSGD::report_samples(std::int64_t samples) { job_->job->report_samples(samples); }
int DownpourSGD::rank() const { return job_->job->rank(); }
int DownpourSGD::world_size() const { return job_->job->world_size(); }
const StepStats& DownpourSGD::stats() const { return job_->replica.stats; }
std::string DownpourSGD::transport() const { return job_->job->transport(); }

void DownpourSGD::save(torch::serialize::OutputArchive& archive) const {
  job_->check_process("save");
  job_->job->save(archive);
}

void DownpourSGD::load(torch::serialize::InputArchive& archive) {
  job_->check_usable("load");
  job_->job->load(archive);
}

}  // namespace downpour
