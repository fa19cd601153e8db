#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/model/trainable.h"
#include "csrc/ps/schema.h"
#include "optimizers/cadence.h"
#include "optimizers/downpour_options.h"
#include "optimizers/downpour_sgd.h"
#include "optimizers/gradient_sum.h"
#include "optimizers/rule_options.h"

namespace downpour::optimizers {

// What a program gives to train, before there is an optimizer: the index over its parameters and their groups.
struct Training {
  model::Trainable trainable;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::weak_ptr<const torch::nn::Module> module;  // expired: none, or one that no shared_ptr owns
  std::vector<model::Trainable::Named> frozen;    // its parameters that do not require grad
  std::vector<model::Trainable::Named> buffers;   // its floating-point buffers
  bool knows_module = false;

  static Training of(const torch::nn::Module& module);
  // Errors: c10::Error for a parameter of the module that requires grad and is in no group, or in two, naming it.
  static Training of(const torch::nn::Module& module, std::vector<torch::optim::OptimizerParamGroup> groups);
  static Training of(std::vector<torch::Tensor> parameters);
  // Errors: c10::Error for a parameter in two groups, naming it.
  static Training of(std::vector<torch::optim::OptimizerParamGroup> groups);
};

// Whether the parameters' own memory holds the values that count, or they are a copy of what lies elsewhere.
enum class ValuesLie { kHere, kElsewhere };

// The copy of the model that this worker trains, and how: its parameters, their groups and numbers, the steps so far.
// Threads: the training loop's. Owns: handles and the sums of a push that spans several steps.
class Replica {
 public:
  // `optimizer` has been given training.groups, and outlives this.
  Replica(Training training, const TorchRule& rule, DownpourOptions options, torch::optim::Optimizer& optimizer);

  model::Trainable& trainable() { return training_.trainable; }
  const model::Trainable& trainable() const { return training_.trainable; }
  const Training& training() const { return training_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const DownpourOptions& options() const { return options_; }
  ps::RuleKind rule() const { return rule_; }
  double accumulator() const { return accumulator_; }
  std::uint32_t group(std::size_t index) const { return group_[index]; }
  // The groups' numbers as they are now; the scale and plainness are for the caller to set.
  std::vector<ps::Hyper>& read_groups();
  ps::Schema schema() const;

  // Before a step. Errors: c10::Error naming the parameter: added later, unfrozen, changed dtype, shape or device. Replaced
  // storage is legal; where the values lie elsewhere it is said once, since those win.
  void check(ValuesLie where);

  // p -= local_lr * grad, between two pulls.
  void local_step();

  Cadence cadence;
  GradientSum sum;
  StepStats stats;

 private:
  void list_groups();
  void check_groups() const;
  void check_module() const;
  void warn_replaced(const model::Change& change);

  Training training_;
  torch::optim::Optimizer& optimizer_;
  DownpourOptions options_;
  ps::RuleKind rule_;
  double accumulator_;
  std::vector<std::uint32_t> group_;              // by index of the parameter
  std::vector<std::vector<const void*>> listed_;  // TensorImpls of the groups as they were
  std::vector<ps::Hyper> hypers_;
  std::uint8_t extra_buffers_ = 0;
  std::int64_t checks_ = 0;
};

}  // namespace downpour::optimizers
