#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>

#include "csrc/ps/update_rule.h"

namespace downpour::optimizers {

// Up to three state tensors of one parameter, in the order of ps::state_name; nullptr where the rule keeps fewer.
using StateTensors = std::array<const torch::Tensor*, ps::kMaxStateBuffers>;

// values <- rule(values, gradient, state), where they lie: on the CPU one fused pass (ps::apply_rule), split over LibTorch's
// threads as ATen splits its own; on a device, or where memory layouts differ, the operations of torch::optim.
// Shapes: equal sizes and dtype; any strides. `step` counts this update, from 1. Threads: the caller's. No autograd.
void update_tensor(ps::RuleKind rule, const ps::Hyper& hyper, std::int64_t step, const torch::Tensor& values,
                   const torch::Tensor& gradient, const StateTensors& state);

// Both have their elements at the same places of one gapless block of CPU memory.
bool same_memory_layout(const torch::Tensor& a, const torch::Tensor& b);

// The factor that brings a gradient of this norm down to `limit`; torch::nn::utils::clip_grad_norm_ has the same.
double clip_factor(double norm, double limit);

// Sum of squares in double, whatever the layout or device.
double squared_norm(const torch::Tensor& gradient);

}  // namespace downpour::optimizers
