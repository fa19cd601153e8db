#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/model/trainable.h"

namespace downpour::optimizers {

// Hooks on the parameters that tell when a backward pass has completed a gradient; later layers come first. Hooks that were
// there before run before ours and are put back by the destructor.
// Threads: autograd's threads call back while a backward pass runs, one at a time.
class GradientHooks {
 public:
  using OnReady = std::function<void(std::size_t index)>;  // must not throw

  GradientHooks(const model::Trainable& trainable, OnReady on_ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  void pause() { ++paused_; }  // nestable
  void resume() { --paused_; }

 private:
  class Hook;
  struct Gate;

  const model::Trainable& trainable_;
  // Owners: this, and every hook, which may outlive it inside another hook that was put around ours.
  std::shared_ptr<Gate> gate_;
  int paused_ = 0;
};

}  // namespace downpour::optimizers
