#pragma once

#include <torch/torch.h>
#include <torch/version.h>

#include <memory>

// The parts of LibTorch below its C++ API that Downpour uses, and everything that differs between LibTorch 2.11 and 2.15.
namespace downpour::compat {

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11, "Downpour supports LibTorch 2.11 to 2.15");

using PostAccumulateHook = torch::autograd::PostAccumulateGradHook;

// Where autograd keeps the one hook that runs after a leaf's gradient was accumulated; nullptr: none.
inline std::unique_ptr<PostAccumulateHook>& post_accumulate_hook(const torch::Tensor& leaf) {
  return torch::autograd::impl::post_acc_grad_hooks(leaf);
}
inline void set_post_accumulate_hook(const torch::Tensor& leaf, std::unique_ptr<PostAccumulateHook> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
}

}  // namespace downpour::compat
