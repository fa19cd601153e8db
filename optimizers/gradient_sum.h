#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <vector>

namespace downpour::optimizers {

// The gradients of the steps since the last push, summed per parameter. The memory is kept and reused. Threads: one.
class GradientSum {
 public:
  explicit GradientSum(std::size_t parameters) : sums_(parameters), present_(parameters, false) {}

  void add(std::size_t index, const torch::Tensor& gradient);
  bool present(std::size_t index) const { return present_[index]; }
  bool empty() const;
  const torch::Tensor& operator[](std::size_t index) const { return sums_[index]; }
  void clear();

  // Part of a checkpoint in the middle of a push.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::vector<torch::Tensor> sums_;  // undefined until its first gradient
  std::vector<bool> present_;        // unused parameters count as absent
};

}  // namespace downpour::optimizers
