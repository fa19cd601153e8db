#include "optimizers/gradient_sum.h"

#include <algorithm>

namespace downpour::optimizers {

void GradientSum::add(std::size_t index, const torch::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  torch::Tensor& sum = sums_[index];
  if (!sum.defined()) {
    sum = torch::empty_like(gradient, torch::MemoryFormat::Preserve);
  }
  if (present_[index]) {
    sum.add_(gradient);
  } else {
    sum.copy_(gradient);
    present_[index] = true;
  }
}

bool GradientSum::empty() const {
  return std::ranges::none_of(present_, [](bool present) { return present; });
}

void GradientSum::clear() { present_.assign(present_.size(), false); }

void GradientSum::save(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (present_[i]) {
      archive.write("sum/" + std::to_string(i), sums_[i]);
    }
  }
}

void GradientSum::load(torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    torch::Tensor sum;
    present_[i] = archive.try_read("sum/" + std::to_string(i), sum);
    if (present_[i]) {
      sums_[i] = sum;
    }
  }
}

}  // namespace downpour::optimizers
