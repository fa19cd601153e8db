#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/model/trainable.h"

namespace downpour::optimizers {

// Which gradients have left before step(), and what they were then: whatever happens to .grad afterwards is lost, and must be
// an error. A changed tensor, version counter or value gives it away; of its values something is kept because clip_grad_norm_
// writes through .data(), which no version counter sees: a few of them, or two sums over all where they lie on a device.
class Departures {
 public:
  explicit Departures(const model::Trainable& trainable) : trainable_(trainable), left_(trainable.size()) {}

  void mark(std::size_t index);  // its gradient leaves now
  bool left(std::size_t index) const { return left_[index].times > 0; }
  // Errors: c10::Error naming the parameter whose gradient was changed after it left, or left twice.
  void check() const;
  void clear();

 private:
  static constexpr std::int64_t kSamples = 16;
  struct Departure {
    int times = 0;
    const void* address = nullptr;
    std::uint32_t version = 0;
    std::vector<double> samples;  // on the CPU
    std::int64_t first_sample = 0;
    torch::Tensor sums;  // elsewhere
  };
  static void sample(const torch::Tensor& gradient, std::int64_t first, std::vector<double>& into);
  static bool is_unchanged(const Departure& departure, const torch::Tensor& gradient);

  const model::Trainable& trainable_;
  std::vector<Departure> left_;
};

}  // namespace downpour::optimizers
