#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <variant>

#include "csrc/ps/update_rule.h"

// torch::optim's options as update rules: which rule they name, and their numbers as they are now (schedulers change them).
namespace downpour::optimizers {

using TorchRule = std::variant<torch::optim::SGDOptions, torch::optim::AdagradOptions, torch::optim::AdamOptions,
                               torch::optim::AdamWOptions>;

ps::RuleKind rule_kind(const TorchRule& rule);

// A copy for torch::optim::Optimizer. Errors: c10::Error, the words of torch::optim's own constructor, for values it refuses.
std::unique_ptr<torch::optim::OptimizerOptions> checked_defaults(const TorchRule& rule);

// Errors: c10::Error naming the group where its options are of another optimizer than the rule, or values it refuses.
void check_group_options(ps::RuleKind kind, const torch::optim::OptimizerOptions& options, std::size_t group);

ps::Hyper to_hyper(ps::RuleKind kind, const torch::optim::OptimizerOptions& options);

// Adagrad's, as torch takes it: from the defaults, for all groups. 0 for the other rules.
double initial_accumulator(const TorchRule& rule);

// SGD with momentum, Adam and AdamW with amsgrad keep one state buffer more.
bool keeps_extra_buffer(ps::RuleKind kind, const ps::Hyper& hyper);

}  // namespace downpour::optimizers
