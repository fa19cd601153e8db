#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "backends/distributed_data_parallel.h"
#include "backends/gradient_bucket.h"

namespace downpour::backends {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// A module's gradients over its backward passes: from each post-accumulate hook into a bucket, from the buckets to the mean over the ranks.
//
// A pass begins with the first hook of a graph task of autograd's, and ends with that task: in a callback at its end, or, where an error
// ended it, when autograd lets go of it. Then this rank takes part in what is left of the pass all the same, and marks it as given up, so that
// the calls of all ranks stay in step and no rank uses what it got. A backward pass inside another is part of it.
// Threads: one at a time. Owns: the buckets; passes under way own it.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  using Action = std::function<void()>;

  // `before_pass` checks whether a pass may be, `after_reduction` does what else the ranks do in each pass.
  GradientReducer(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                  const DistributedDataParallelOptions& options, Action before_pass, Action after_reduction);

  // The gradient was accumulated, in a pass whose gradients are to be reduced, or stay this rank's. Errors: as DistributedDataParallel's.
  void reduce(std::size_t index);
  void keep(std::size_t index) const { check_not_reduced(index); }

  std::uint64_t passes() const { return passes_; }
  std::vector<std::int64_t> bucket_bytes() const;

 private:
  class Pass;
  struct Place {
    std::size_t bucket, slot;
  };

  void lay_out(const std::vector<std::size_t>& order);
  at::Tensor allocate(std::int64_t elements, const at::TensorOptions& terms) const;
  GradientBucket& bucket_of(std::size_t index) { return buckets_[places_[index].bucket]; }
  bool was_used(std::size_t index) const { return buckets_[places_[index].bucket].was_used(places_[index].slot); }
  const at::Tensor& alias_of(std::size_t index) const {
    return buckets_[places_[index].bucket].alias(places_[index].slot);
  }

  void begin_pass();
  void check_not_reduced(std::size_t index) const;
  void check(std::size_t index, const at::Tensor& gradient) const;
  bool is_as_reduced(std::size_t index) const;
  void take(std::size_t index);
  void reduce_complete();
  void fill_rest();
  void give_up();
  void conclude(Pass& pass);
  void finish_buckets();
  void set_gradients();
  void settle_order();
  void move_to(const std::vector<std::size_t>& order);
  void note_change(std::size_t index);

  const std::vector<NamedParameter> parameters_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const DistributedDataParallelOptions options_;
  const Action before_pass_, after_reduction_;
  const double scale_;

  std::deque<GradientBucket> buckets_;
  std::vector<Place> places_;           // of each parameter
  std::vector<std::int64_t> versions_;  // of each alias, when it was taken or reduced last
  bool order_settled_ = false;
  std::uint64_t passes_ = 0;

  std::weak_ptr<Pass> pass_;                                   // under way
  std::vector<std::size_t> arrived_;                           // in this order, in this pass
  std::vector<std::pair<std::size_t, at::Tensor>> set_aside_;  // what unused parameters have from an earlier pass
  std::size_t next_ = 0;                                       // bucket to be reduced
};

}  // namespace downpour::backends
