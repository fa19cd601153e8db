#include "optimizers/rule_state.h"

namespace downpour::optimizers {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
namespace optim = torch::optim;

template <typename State>
State* find_state(Optimizer& optimizer, const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

template <typename State>
State& make_state(Optimizer& optimizer, const Tensor& parameter) {
  auto state = std::make_unique<State>();
  State& made = *state;
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  return made;
}

Tensor zeros_for(const Tensor& parameter) {
  return torch::zeros_like(parameter.detach(), torch::MemoryFormat::Preserve);
}

RuleState advance_sgd(const ps::Hyper& hyper, const Tensor& parameter, Optimizer& optimizer) {
  if (hyper.momentum == 0) {
    return {};
  }
  auto* state = find_state<optim::SGDParamState>(optimizer, parameter);
  if (state != nullptr && state->momentum_buffer().defined()) {
    return {2, {&state->momentum_buffer()}};
  }
  // The first gradient overwrites it.
  auto& made = make_state<optim::SGDParamState>(optimizer, parameter);
  made.momentum_buffer(torch::empty_like(parameter.detach(), torch::MemoryFormat::Preserve));
  return {1, {&made.momentum_buffer()}};
}

RuleState advance_adagrad(double accumulator, const Tensor& parameter, Optimizer& optimizer) {
  make_initial_state(ps::RuleKind::kAdagrad, accumulator, parameter, optimizer);
  auto* state = find_state<optim::AdagradParamState>(optimizer, parameter);
  return {++state->step(), {&state->sum()}};
}

template <typename State>
RuleState advance_adam(const ps::Hyper& hyper, const Tensor& parameter, Optimizer& optimizer) {
  State* state = find_state<State>(optimizer, parameter);
  if (state == nullptr) {
    state = &make_state<State>(optimizer, parameter);
    state->exp_avg(zeros_for(parameter));
    state->exp_avg_sq(zeros_for(parameter));
  }
  if (hyper.amsgrad != 0 && !state->max_exp_avg_sq().defined()) {
    state->max_exp_avg_sq(zeros_for(parameter));
  }
  return {++state->step(),
          {&state->exp_avg(), &state->exp_avg_sq(), hyper.amsgrad != 0 ? &state->max_exp_avg_sq() : nullptr}};
}

}  // namespace

void make_initial_state(ps::RuleKind rule, double accumulator, const Tensor& parameter, Optimizer& optimizer) {
  if (rule != ps::RuleKind::kAdagrad || find_state<optim::AdagradParamState>(optimizer, parameter) != nullptr) {
    return;
  }
  auto& state = make_state<optim::AdagradParamState>(optimizer, parameter);
  state.sum(torch::full_like(parameter.detach(), accumulator, torch::MemoryFormat::Preserve));
}

RuleState advance_state(ps::RuleKind rule, const ps::Hyper& hyper, double accumulator, const Tensor& parameter,
                        Optimizer& optimizer) {
  switch (rule) {
    case ps::RuleKind::kSgd: return advance_sgd(hyper, parameter, optimizer);
    case ps::RuleKind::kAdagrad: return advance_adagrad(accumulator, parameter, optimizer);
    case ps::RuleKind::kAdam: return advance_adam<optim::AdamParamState>(hyper, parameter, optimizer);
    case ps::RuleKind::kAdamW: break;
  }
  return advance_adam<optim::AdamWParamState>(hyper, parameter, optimizer);
}

void save_state(ps::RuleKind rule, const Optimizer& optimizer, torch::serialize::OutputArchive& archive) {
  switch (rule) {
    case ps::RuleKind::kSgd: return optim::serialize<optim::SGDParamState, optim::SGDOptions>(archive, optimizer);
    case ps::RuleKind::kAdagrad:
      return optim::serialize<optim::AdagradParamState, optim::AdagradOptions>(archive, optimizer);
    case ps::RuleKind::kAdam: return optim::serialize<optim::AdamParamState, optim::AdamOptions>(archive, optimizer);
    case ps::RuleKind::kAdamW: return optim::serialize<optim::AdamWParamState, optim::AdamWOptions>(archive, optimizer);
  }
}

void load_state(ps::RuleKind rule, Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  switch (rule) {
    case ps::RuleKind::kSgd: return optim::serialize<optim::SGDParamState, optim::SGDOptions>(archive, optimizer);
    case ps::RuleKind::kAdagrad:
      return optim::serialize<optim::AdagradParamState, optim::AdagradOptions>(archive, optimizer);
    case ps::RuleKind::kAdam: return optim::serialize<optim::AdamParamState, optim::AdamOptions>(archive, optimizer);
    case ps::RuleKind::kAdamW: return optim::serialize<optim::AdamWParamState, optim::AdamWOptions>(archive, optimizer);
  }
}

}  // namespace downpour::optimizers
