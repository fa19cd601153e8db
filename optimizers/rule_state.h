#pragma once

#include <torch/torch.h>

#include "optimizers/update_tensor.h"

// Optimizer state in torch::optim's own objects (SGDParamState, ...), so that it is saved and loaded as torch's own.
namespace downpour::optimizers {

// What one update of one parameter needs. The tensors belong to the optimizer's state; valid until it changes.
struct RuleState {
  std::int64_t step = 1;
  StateTensors tensors{};
};

// The state for the next update of `parameter`, made where there is none yet, its step count raised: as torch's step() does.
RuleState advance_state(ps::RuleKind rule, const ps::Hyper& hyper, double accumulator, const torch::Tensor& parameter,
                        torch::optim::Optimizer& optimizer);

// Adagrad's state exists from the start; the others' from the first gradient on.
void make_initial_state(ps::RuleKind rule, double accumulator, const torch::Tensor& parameter,
                        torch::optim::Optimizer& optimizer);

// torch::optim's archive of state and groups. Errors: c10::Error (torch's) for an archive of other groups.
void save_state(ps::RuleKind rule, const torch::optim::Optimizer& optimizer, torch::serialize::OutputArchive& archive);
void load_state(ps::RuleKind rule, torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive);

}  // namespace downpour::optimizers
