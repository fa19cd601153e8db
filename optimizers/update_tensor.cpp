#include "optimizers/update_tensor.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace downpour::optimizers {
namespace {

using torch::Tensor;

Dtype dtype_of(const Tensor& tensor) {
  return tensor.scalar_type() == torch::kDouble ? Dtype::kFloat64 : Dtype::kFloat32;
}

bool fused_fits(const Tensor& values, const Tensor& gradient, const StateTensors& state) {
  if (!same_memory_layout(values, gradient)) {
    return false;
  }
  for (const Tensor* buffer : state) {
    if (buffer != nullptr && !same_memory_layout(values, *buffer)) {
      return false;
    }
  }
  return true;
}

void update_fused(ps::RuleKind rule, const ps::Hyper& hyper, std::int64_t step, const Tensor& values,
                  const Tensor& gradient, const StateTensors& state) {
  const Dtype dtype = dtype_of(values);
  auto* const p = static_cast<char*>(values.data_ptr());
  const auto* const g = static_cast<const char*>(gradient.const_data_ptr());
  std::array<char*, ps::kMaxStateBuffers> buffers{};
  for (std::size_t i = 0; i < state.size(); ++i) {
    buffers[i] = state[i] != nullptr ? static_cast<char*>(state[i]->data_ptr()) : nullptr;
  }
  at::parallel_for(0, values.numel(), at::internal::GRAIN_SIZE, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t offset = begin * size_bytes(dtype);
    std::array<void*, ps::kMaxStateBuffers> at{};
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      at[i] = buffers[i] != nullptr ? buffers[i] + offset : nullptr;
    }
    ps::apply_rule(rule, hyper, dtype, end - begin, step, p + offset, g + offset, at);
  });
  values.unsafeGetTensorImpl()->bump_version();
}

// ---- the same rules as torch::optim's sequence of tensor operations -------------------------------------------------

void update_sgd(const ps::Hyper& hyper, std::int64_t step, const Tensor& values, Tensor direction,
                const Tensor* buffer) {
  if (hyper.momentum != 0) {
    if (step == 1) {
      buffer->copy_(direction);
    } else {
      buffer->mul_(hyper.momentum).add_(direction, 1 - hyper.dampening);
    }
    direction = hyper.nesterov != 0 ? direction.add(*buffer, hyper.momentum) : *buffer;
  }
  values.add_(direction, -hyper.lr);
}

void update_adagrad(const ps::Hyper& hyper, std::int64_t step, const Tensor& values, const Tensor& gradient,
                    const Tensor& sum) {
  const double lr = hyper.lr / (1 + static_cast<double>(step - 1) * hyper.lr_decay);
  sum.addcmul_(gradient, gradient, 1.0);
  values.addcdiv_(gradient, sum.sqrt().add_(hyper.eps), -lr);
}

void update_adam(const ps::Hyper& hyper, std::int64_t step, const Tensor& values, const Tensor& gradient,
                 const StateTensors& state) {
  const auto& [first, second, largest] = state;
  const double correction1 = 1 - std::pow(hyper.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(hyper.beta2, static_cast<double>(step));
  first->mul_(hyper.beta1).add_(gradient, 1 - hyper.beta1);
  second->mul_(hyper.beta2).addcmul_(gradient, gradient, 1 - hyper.beta2);
  Tensor moment = *second;
  if (hyper.amsgrad != 0) {
    moment = *largest;
    at::max_out(moment, *second, *largest);
  }
  const Tensor deviation = (moment.sqrt() / std::sqrt(correction2)).add_(hyper.eps);
  values.addcdiv_(*first, deviation, -(hyper.lr / correction1));
}

void update_stepwise(ps::RuleKind rule, const ps::Hyper& hyper, std::int64_t step, const Tensor& values,
                     Tensor gradient, const StateTensors& state) {
  const torch::NoGradGuard no_grad;
  if (hyper.gradient_scale != 1) {
    gradient = gradient * hyper.gradient_scale;
  }
  if (rule == ps::RuleKind::kAdamW) {
    if (hyper.weight_decay != 0) {
      values.mul_(1 - hyper.lr * hyper.weight_decay);
    }
  } else if (hyper.weight_decay != 0) {
    gradient = gradient.add(values, hyper.weight_decay);
  }
  if (rule == ps::RuleKind::kSgd) {
    update_sgd(hyper, step, values, std::move(gradient), state[0]);
  } else if (rule == ps::RuleKind::kAdagrad) {
    update_adagrad(hyper, step, values, gradient, *state[0]);
  } else {
    update_adam(hyper, step, values, gradient, state);
  }
}

}  // namespace

bool same_memory_layout(const Tensor& a, const Tensor& b) {
  if (!a.is_cpu() || !b.is_cpu()) {
    return false;
  }
  if (a.is_contiguous() && b.is_contiguous()) {
    return true;
  }
  return a.is_non_overlapping_and_dense() && a.strides() == b.strides();
}

void update_tensor(ps::RuleKind rule, const ps::Hyper& hyper, std::int64_t step, const Tensor& values,
                   const Tensor& gradient, const StateTensors& state) {
  if (fused_fits(values, gradient, state)) {
    update_fused(rule, hyper, step, values, gradient, state);
  } else {
    update_stepwise(rule, hyper, step, values, gradient, state);
  }
}

double clip_factor(double norm, double limit) { return std::min(1.0, limit / (norm + 1e-6)); }

double squared_norm(const Tensor& gradient) {
  if (gradient.is_cpu() && gradient.is_non_overlapping_and_dense()) {
    const auto check = ps::check_gradient(dtype_of(gradient), gradient.numel(), gradient.const_data_ptr());
    return check.finite ? check.squared_norm : std::numeric_limits<double>::quiet_NaN();
  }
  const torch::NoGradGuard no_grad;
  return gradient.to(torch::kDouble).pow(2).sum().item<double>();
}

}  // namespace downpour::optimizers
