#pragma once

#include <torch/torch.h>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace downpour::model {

// Hooks on the parameters that tell when a backward pass has completed a gradient; later layers come first. Hooks that were
// there before run before ours and are put back by the destructor.
// Threads: autograd's threads call back while a backward pass runs, one at a time.
class GradientHooks {
 public:
  using OnReady = std::function<void(std::size_t index)>;  // what it throws comes out of backward()

  GradientHooks(std::vector<torch::Tensor> leaves, OnReady on_ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  void pause() { ++paused_; }  // nestable
  void resume() { --paused_; }

 private:
  class Hook;
  struct Gate;

  std::vector<torch::Tensor> leaves_;
  // Owners: this, and every hook, which may outlive it inside another hook that was put around ours.
  std::shared_ptr<Gate> gate_;
  int paused_ = 0;
};

}  // namespace downpour::model
