#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace downpour {

// What happens to floating-point buffers (BatchNorm's running statistics) at the end of each synchronising backward pass.
enum class DdpBuffers {
  kFromRank0,  // as torch's DistributedDataParallel: rank 0's values, everywhere
  kMean,       // the mean over the ranks
  kLocal,      // each rank's own
};
// How gradients travel; what the rounding loses is added to the next step's gradient (error feedback).
enum class Compression { kNone, kFloat16, kBfloat16 };

struct DistributedDataParallelOptions {
  TORCH_ARG(double, first_bucket_mb) = 1;  // small, so that the first reduction begins early
  TORCH_ARG(double, bucket_mb) = 25;
  TORCH_ARG(DdpBuffers, buffers) = DdpBuffers::kFromRank0;
  TORCH_ARG(Compression, compression) = Compression::kNone;
};

// Data-parallel training of any module: after backward() every rank's gradients are the mean over the ranks. It attaches to the
// parameters and never wraps forward:
//
//   auto group = downpour::init_process_group();
//   downpour::DistributedDataParallel ddp(*model, group);
//   ... the loop as it was, over this rank's part of the data ...
//
// Flow: on construction all ranks prove that they have the same parameters and buffers, and take rank 0's values of them. A
// post-accumulate hook scales and copies each gradient into its bucket in one pass and sets `.grad` to an alias of that place;
// a bucket that is full is reduced while backward goes on; at the end of the pass, before backward() returns, all are waited for. After the
// first pass buckets follow the order in which rank 0's gradients came, in memory that the ranks of a machine share where the
// group is Downpour's. A world of one does nothing.
// Unused parameters: found at the end of each pass. One that no rank used keeps the gradient it had (undefined after zero_grad()); one
// that some rank used gets the mean everywhere. A rank on which a pass reaches no parameter at all does not notice it, and the others wait
// for it until the timeout.
// Clipping: clip_grad_norm_() after backward() is exact, since all ranks hold the same gradients.
// Threads: that of backward(). Owns: buckets. Gradients may outlive it. The module outlives it, or detach() comes first; a parameter that
// is added or unfrozen wants a new one.
// Blocks: backward() waits for the other ranks, as long as the group's timeout, also when it ends with an error.
// Errors: Error, naming the parameter: from the constructor on every rank for modules that differ, for a sparse parameter; from backward()
// for a second pass without zero_grad() between, a sparse gradient, a parameter whose dtype or shape has changed or that was unfrozen.
// An error that ends backward() on one rank, also one of the user's, is an Error of that pass on the others; the next pass can be right.
// CommError when a rank is lost. After an error gradients stay readable memory of this process with undefined values.
// `.grad` never carries a graph: take gradients of gradients by torch::autograd::grad().
class DistributedDataParallel {
 public:
  DistributedDataParallel(torch::nn::Module& module, c10::intrusive_ptr<c10d::ProcessGroup> group,
                          const DistributedDataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // While it lives backward passes only accumulate into this rank's gradients (gradient accumulation).
  class NoSync;
  [[nodiscard]] NoSync no_sync();

  // Takes the hooks off: the module is as it was before, its gradients stay. Also what the destructor does.
  void detach();

  // Passes whose gradients were reduced, buckets, and bytes in them, for tests and logs.
  std::uint64_t passes() const;
  std::vector<std::int64_t> bucket_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class DistributedDataParallel::NoSync {
 public:
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  friend class DistributedDataParallel;
  explicit NoSync(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace downpour
