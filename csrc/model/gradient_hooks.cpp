#include "csrc/model/gradient_hooks.h"

#include <mutex>

#include "csrc/model/torch_compat.h"

namespace downpour::model {

struct GradientHooks::Gate {
  std::mutex mutex;
  OnReady on_ready;  // empty once the owner is gone
  const int* paused = nullptr;
};

class GradientHooks::Hook final : public compat::PostAccumulateHook {
 public:
  Hook(std::shared_ptr<Gate> gate, std::size_t index, std::unique_ptr<PostAccumulateGradHook> before)
      : gate_(std::move(gate)), index_(index), before_(std::move(before)) {}

  void operator()(const torch::Tensor& parameter) override {
    if (before_ != nullptr) {
      (*before_)(parameter);
    }
    const std::scoped_lock lock(gate_->mutex);
    if (gate_->on_ready && *gate_->paused == 0) {
      gate_->on_ready(index_);
    }
  }

  std::unique_ptr<PostAccumulateGradHook> take_before() { return std::move(before_); }
  bool belongs_to(const std::shared_ptr<Gate>& gate) const { return gate_ == gate; }

 private:
  std::shared_ptr<Gate> gate_;
  std::size_t index_;
  std::unique_ptr<PostAccumulateGradHook> before_;
};

GradientHooks::GradientHooks(std::vector<torch::Tensor> leaves, OnReady on_ready)
    : leaves_(std::move(leaves)), gate_(std::make_shared<Gate>()) {
  gate_->on_ready = std::move(on_ready);
  gate_->paused = &paused_;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const torch::Tensor& tensor = leaves_[i];
    auto before = std::move(compat::post_accumulate_hook(tensor));
    compat::set_post_accumulate_hook(tensor, std::make_unique<Hook>(gate_, i, std::move(before)));
  }
}

GradientHooks::~GradientHooks() {
  {
    const std::scoped_lock lock(gate_->mutex);
    gate_->on_ready = nullptr;
  }
  for (const torch::Tensor& tensor : leaves_) {
    auto* ours = dynamic_cast<Hook*>(compat::post_accumulate_hook(tensor).get());
    if (ours != nullptr && ours->belongs_to(gate_)) {
      compat::set_post_accumulate_hook(tensor, ours->take_before());
    }
  }
}

}  // namespace downpour::model
