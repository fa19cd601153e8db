#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "csrc/base/dtype.h"
#include "csrc/ps/gradient_check.h"
#include "csrc/ps/schema.h"

// The server-side optimizers as kernels: one pass over memory, vectorised (Highway, run-time dispatch).
namespace downpour::ps {

// Numbers of one parameter group; they travel with every push. Unused fields are ignored by a rule.
// kSgd: lr, weight_decay, momentum, dampening, nesterov. kAdagrad: lr, weight_decay, lr_decay, eps.
// kAdam, kAdamW: lr, weight_decay, beta1, beta2, eps, amsgrad.
struct Hyper {
  double lr = 0.01;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  double lr_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-10;
  double gradient_scale = 1;  // every rule multiplies the gradient by it first: clipping, the mean over workers
  std::uint8_t nesterov = 0;
  std::uint8_t amsgrad = 0;
  std::uint8_t plain = 0;  // 1: this group's rule is p -= lr * gradient, whatever the schema's (shared buffers)
  bool operator==(const Hyper&) const = default;
};

// How many state buffers, each as long as the values, a rule keeps: SGD 0 or 1 (momentum), Adagrad 1 (sum of squares),
// Adam and AdamW 2 (first and second moment) or 3 (maximum of the second, amsgrad).
int state_buffers(const Schema& schema);
constexpr int kMaxStateBuffers = 3;
// "momentum_buffer", "sum", "exp_avg", "exp_avg_sq", "max_exp_avg_sq": torch.optim's names, used in snapshots.
std::string_view state_name(RuleKind rule, int buffer);

// Whether these numbers can be used on a shard with `buffers` state buffers.
// Errors: Error naming the field when a number is not finite, a beta is outside [0, 1), the momentum (amsgrad) needs a
// state buffer that the schema does not have, or a plain group has momentum.
void check_hyper(RuleKind rule, int buffers, const Hyper& hyper);

// values <- rule(values, gradient, state): the same arithmetic, in the same order, as LibTorch's optimizers.
// kSgd equals torch::optim::SGD bit for bit (explicit fused multiply-add, as ATen's kernels have it).
// torch::optim::Adagrad, Adam and AdamW are equalled bit for bit in their state and, where LibTorch's square root is
// correctly rounded, in the values. MKL's is off by one unit on some processors: the values then lie within 2 ulp of
// max(|p|, |dp|) per update in all but 2 elements of 10000, within 4 ulp in those (measured, Adam).
// Shapes: values, gradient, state[i]: `count` elements of `dtype`, contiguous, any alignment; they do not overlap.
// `step` is the parameter's step count including this update, >= 1. State must be zero (Adagrad: the initial
// accumulator value) before step 1; SGD's momentum buffer is overwritten by the first gradient at step 1, as torch
// does. On processors without fused multiply-add both ATen and this round twice; in neither does a result depend on an
// element's position.
// Errors: Error for a negative count, a step below 1, a missing state buffer: nothing has changed.
// Threads: any, on disjoint memory. Source: LibTorch torch::optim; Adagrad Duchi 2011, Adam Kingma 2015, AdamW
// Loshchilov 2019.
void apply_rule(RuleKind rule, const Hyper& hyper, Dtype dtype, std::int64_t count, std::int64_t step, void* values,
                const void* gradient, std::array<void*, kMaxStateBuffers> state);

}  // namespace downpour::ps
