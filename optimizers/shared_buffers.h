#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/base/environment.h"
#include "csrc/model/trainable.h"
#include "csrc/ps/client.h"
#include "optimizers/replica.h"

namespace downpour::optimizers {

// The floating-point buffers of a module under BufferPolicy::kShared: parameters of a group of their own, whose rule is plain
// subtraction with learning rate 1. A push tells what this worker's forward passes changed since the last one, negated and
// divided by the number of workers; a pull adopts the sum. An element whose change is no finite number (an observer's minimum that
// begins at infinity) cannot be summed: from then on every worker keeps its own there, and says so once. Under kLocal it is empty,
// and worker 0 says so where workers could differ.
// Threads: the training loop's.
class SharedBuffers {
 public:
  SharedBuffers(const Replica& replica, const Environment& environment);

  // The parameters go on where the job has been; says so of the buffers that do not.
  void note_values_of_before() const;

  void add_to(ps::Schema& schema) const;  // after the parameters
  void add_to(std::vector<ps::Hyper>& hypers) const;
  torch::Tensor values(std::size_t index) const { return buffers_->values(index); }
  void push(ps::Client& client, std::size_t first_parameter);
  void before_pull();  // what no push has told yet is kept, here and for the next push
  void adopt(std::size_t index, std::int64_t begin, std::int64_t count, const void* source);
  void after_pull();

 private:
  std::size_t size() const { return buffers_ ? buffers_->size() : 0; }
  void count_changes();
  void keep_own(std::size_t index, const torch::Tensor& elements);

  std::optional<model::Trainable> buffers_;
  std::vector<torch::Tensor> counted_;  // values up to which changes are in untold_
  std::vector<torch::Tensor> untold_;   // the next push
  std::vector<torch::Tensor> own_;      // bool: elements that are not shared any more; undefined while all are
  std::size_t kept_apart_ = 0;          // buffers under kLocal
  int world_size_;
};

}  // namespace downpour::optimizers
