#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "csrc/base/malloc_settings.h"  // keep_freed_memory(): fewer page faults for LibTorch on a CPU
#include "optimizers/downpour_options.h"

namespace downpour {

class Samples;
namespace optimizers {
struct Training;
}

// What one step did; for logs and progress bars.
struct StepStats {
  std::int64_t step = 0;                // of this process
  double mean_staleness = 0;            // updates, own ones too, between the values used and the update made
  std::int64_t stale = 0, refused = 0;  // shards that dropped a push decided since the last report: too old; not finite
  double gradient_norm = 0;             // of the last push, before clipping; only with max_grad_norm
};

// Asynchronous data-parallel SGD on sharded parameter servers, as a torch::optim::Optimizer.
//
// Under `downpour run --servers S --workers N` every worker runs the same loop; step() sends the gradients to the
// servers (which run the rule that the torch options name) and returns with values that contain this worker's own push
// and whatever the others did meanwhile. Without a launcher (another's WORLD_SIZE above 1 is an error) it is a world of
// one: the rule runs on the parameters where they lie, equal to torch::optim (SGD bit for bit, the others' state too
// and their values within 4 ulp per update).
//
// By default gradients leave in step(): clipping, unscaling, accumulation and edits of .grad mean what they mean in a
// plain loop. overlap(true): they leave from post-accumulate hooks while backward runs, later layers first; then use
// no_sync() for all but the last backward of an accumulation, max_grad_norm for clipping, and do not edit .grad (step()
// throws and names the parameter). Hooks are removed by the destructor; the module is never wrapped, moved or changed
// otherwise.
//
// Flow: [ps 1/7] step(); [ps 7/7] adopt (DESIGN.md). Threads: call it from the training loop's alone; under the
// launcher it has one of its own, for the heartbeat. Not usable in a forked child (named error).
// Blocks: constructor, step(), fetch(), finish(): each wait for a server at most call_deadline, for others while they
// progress.
// Errors: c10::Error for the caller's mistakes before any effect (different models on two workers: names the first
// differing parameter; parameters added later, replaced or unfrozen; sparse gradients; changed dtype, shape or device);
// CommError for a lost server or launcher. Most programs let it end them: the launcher restarts the worker. After a
// CommError of step(): where stats().step has moved on the push counts as made, go on with the next batch; where it has
// not, step() may be called again. Under servers a process has one DownpourSGD at a time.
// Unused parameters (no .grad) simply do not count: their values and step counts stay.
class DownpourSGD : public torch::optim::Optimizer {
 public:
  using Rule = std::variant<torch::optim::SGDOptions, torch::optim::AdagradOptions, torch::optim::AdamOptions,
                            torch::optim::AdamWOptions>;

  // Parameters get the module's names; its buffers follow DownpourOptions::buffers. Training begins with worker 0's
  // values; the others adopt them here, and so does a worker 0 that is restarted or resumes a job.
  DownpourSGD(torch::nn::Module& module, Rule rule, DownpourOptions options = {});
  // Groups may carry their own options of the same type; every number of theirs (learning rate, weight decay, momentum,
  // betas, eps) is read at each push and travels with it. What a group leaves out is the rule's; LibTorch 2.15 takes a
  // number that equals its type's default for left out: give the rule that default (weight decay 0, for AdamW 0.01).
  // Errors: c10::Error for a parameter of the module that requires grad and is in no group, or in two.
  DownpourSGD(torch::nn::Module& module, std::vector<torch::optim::OptimizerParamGroup> groups, Rule rule,
              DownpourOptions options = {});
  // Without a module: parameters are named by their place, and there are no buffers to share.
  DownpourSGD(std::vector<torch::Tensor> parameters, Rule rule, DownpourOptions options = {});
  DownpourSGD(std::vector<torch::optim::OptimizerParamGroup> groups, Rule rule, DownpourOptions options = {});
  ~DownpourSGD() override;  // removes hooks, leaves the job without waiting; never throws

  torch::Tensor step(LossClosure closure = nullptr) override;

  // Every worker calls it. Settles all pushes, waits until the servers have them in snapshots (call_deadline at most;
  // where none can be written, not at all) and every worker has called it, left or ended, and pulls the final values,
  // the same on all: afterwards worker 0 may evaluate and save. step() after it is an error.
  void finish();

  // Pulls the servers' current values now (the parameters change). Blocks, Errors: as step().
  void fetch();

  // For all but the last backward of an accumulation under overlap(true); without overlap it does nothing.
  class NoSync {
   public:
    explicit NoSync(DownpourSGD& optimizer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DownpourSGD& optimizer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  void report_loss(double loss);              // shown in the launcher's progress line
  void report_samples(std::int64_t samples);  // so many more are done; Samples does it for what it gives

  int rank() const;        // 0 without the launcher
  int world_size() const;  // 1 without the launcher
  const StepStats& stats() const;
  // "embedded", "shm", "tcp", "none" for a server that is not connected; what differs among them in their order:
  // "shm+tcp".
  std::string transport() const;

  // Alone: torch::optim's own format, state and all, interchangeable with its optimizers. Under parameter servers the
  // state lives there and in their snapshots: the archive then holds the groups' options only, and load() takes only
  // those.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  friend class Samples;
  struct State;
  DownpourSGD(optimizers::Training&& training, Rule rule, DownpourOptions options);

  std::unique_ptr<State> job_;
};

}  // namespace downpour
