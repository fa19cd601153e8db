#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "backends/distributed_data_parallel.h"

namespace downpour::backends {

// Gradients that are reduced together: one flat tensor in which they lie one after the other, and behind them one element for each that
// counts the ranks which used it. Slots are places in it.
// Threads: one at a time.
class GradientBucket {
 public:
  // Where memory for a flat tensor comes from; called alike on all ranks.
  using Allocate = std::function<at::Tensor(std::int64_t elements, const at::TensorOptions& options)>;

  GradientBucket(const std::vector<at::Tensor>& parameters, Compression compression, const Allocate& allocate);

  std::size_t size() const { return places_.size(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }
  bool holds(std::size_t slot, const at::Tensor& gradient) const;              // lies at its place already
  at::Tensor alias(std::size_t slot) const { return places_[slot].detach(); }  // zero_grad() refuses a plain view

  // ---- one pass
  void begin();
  void take(std::size_t slot, const at::Tensor& gradient, double scale);  // scaled and copied in one pass
  void leave_empty(std::size_t slot);                                     // this rank has none
  bool has(std::size_t slot) const { return has_[slot]; }
  bool is_complete() const { return missing_ == 0; }
  // Begins the sum over the ranks; `now`: it is done when this returns.
  void reduce(c10d::ProcessGroup& group, bool now);
  void finish();                          // Blocks: until the sum is there. Errors: the call's
  bool was_used(std::size_t slot) const;  // by any rank, once finished

 private:
  void arrive(std::size_t slot, double used);
  at::Tensor& to_send();

  std::vector<at::Tensor> places_;
  at::Tensor flat_;
  at::Tensor used_;               // the end of it
  at::Tensor compressed_, lost_;  // what travels, and what its rounding has left over; undefined without compression
  std::vector<bool> has_;
  std::size_t missing_ = 0;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace downpour::backends
