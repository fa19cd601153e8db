#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/model/trainable.h"

namespace downpour::optimizers {

// Which gradients have left before step(), and what they were then: whatever happens to .grad afterwards is lost, and must be
// an error. A changed tensor, version counter or value gives it away. Values are looked at because clipping writes through
// .data(), which no version counter sees: by a checksum, or by two sums where they lie on a device.
class Departures {
 public:
  explicit Departures(const model::Trainable& trainable) : trainable_(trainable), left_(trainable.size()) {}

  void mark(std::size_t index);  // its gradient leaves now
  bool left(std::size_t index) const { return left_[index].times > 0; }
  // Errors: c10::Error naming the parameter whose gradient was changed after it left, or left twice.
  void check() const;
  void clear();

 private:
  struct Departure {
    int times = 0;
    const void* address = nullptr;
    std::uint32_t version = 0;
    std::uint64_t checksum = 0;  // on the CPU
    torch::Tensor sums;          // elsewhere
  };
  static bool is_unchanged(const Departure& departure, const torch::Tensor& gradient);

  const model::Trainable& trainable_;
  std::vector<Departure> left_;
};

}  // namespace downpour::optimizers
