#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "backends/distributed_data_parallel.h"

namespace downpour::backends {

// Gradients that are reduced together: one flat tensor in which they lie one after the other, and behind them marks: for each gradient
// one element that counts the ranks which have it, and one that counts the ranks which gave the pass up. Slots are places in it.
// Threads: one at a time.
class GradientBucket {
 public:
  // Where memory for what travels comes from; called alike on all ranks.
  using Allocate = std::function<at::Tensor(std::int64_t elements, const at::TensorOptions& options)>;

  GradientBucket(const std::vector<at::Tensor>& parameters, Compression compression, const Allocate& allocate);

  std::size_t size() const { return places_.size(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(flat_.nbytes()); }
  // What `.grad` becomes: the place in memory, strided as the parameter. Not a view, which zero_grad() refuses, and with a version of its own,
  // which only autograd and users change.
  const at::Tensor& alias(std::size_t slot) const { return aliases_[slot]; }
  // What rounding has left over, for the next pass; undefined without compression.
  at::Tensor lost(std::size_t slot) const;

  // ---- one pass
  void begin();
  void take(std::size_t slot, const at::Tensor& gradient, double scale);  // scaled and copied in one pass
  void leave_empty(std::size_t slot);                                     // this rank has none
  void give_up();                                                         // whatever is missing
  bool has(std::size_t slot) const { return states_[slot] != State::kMissing; }
  bool is_complete() const { return missing_ == 0; }
  // Begins the sum over the ranks; `now`: it is done when this returns.
  void reduce(c10d::ProcessGroup& group, bool now);
  void finish();  // Blocks: until the sum is there. Errors: the call's

  // ---- once finished
  bool was_used(std::size_t slot) const { return counts_[slot] > 0; }  // by any rank
  bool was_given_up() const { return counts_.back() > 0; }             // likewise

 private:
  enum class State { kMissing, kUsed, kEmpty };

  void arrive(std::size_t slot, State state);
  void write_marks();
  void read_marks();
  at::Tensor& to_send();

  at::Tensor flat_, marks_;         // the marks are its end
  at::Tensor all_used_;             // marks of a pass that has every gradient
  std::vector<at::Tensor> places_;  // views of flat_
  std::vector<at::Tensor> aliases_;
  at::Tensor compressed_, lost_;  // what travels, and what its rounding has left over; undefined without compression
  std::vector<State> states_;
  std::vector<double> counts_;
  std::size_t missing_ = 0;
  bool given_up_ = false;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace downpour::backends
