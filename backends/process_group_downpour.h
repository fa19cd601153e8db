#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "backends/store_bulletin.h"
#include "backends/tensor_call.h"
#include "csrc/collective/group.h"

namespace downpour {

// c10d's backend "downpour": collective calls and messages between the ranks of a group, through shared memory inside a machine and TCP
// between machines. It only adapts csrc/collective/group.h, which says how ranks meet, fail and agree.
//
// Shapes: dense tensors of any dtype, CPU or CUDA, contiguous or not (copied then); reductions as collective/element.h lists them.
// A CUDA tensor is staged through host memory: for gradients on several devices compose nccl (init_process_group.h).
// Works: done, also on a device, when wait() returns; getFuture() holds the outputs. A call with asyncOp false is done before it returns. Calls of a group are done in the order in which they were made, on all ranks the same; send and recv go beside
// them. Tensors must not be written (inputs: changed) until the work is done.
// Threads: one at a time calls, as c10d does; abort() any.
// Errors: Error for a tensor or argument that cannot be (before any effect) and where ranks call different things; CommError where a
// rank is lost, has left, or the timeout passes: the group is broken then, and each later use says the first reason.
class ProcessGroupDownpour final : public c10d::Backend {
 public:
  static constexpr const char* kName = "downpour";
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout);
    c10::intrusive_ptr<c10d::Backend::Options> clone() const;  // 2.15 overrides its base's

    collective::GroupOptions group;  // rank and world are the backend's
  };

  // `store`: prefixed for this group alone. Blocks, Errors: as Group::form; the options' timeout is how long ranks are waited for.
  ProcessGroupDownpour(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       c10::intrusive_ptr<Options> options = c10::make_intrusive<Options>());
  ~ProcessGroupDownpour() override;

  const std::string getBackendName() const override { return kName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::string medium() const;  // "shm", "tcp", "shm and tcp"

  // ---- collectives ----------------------------------------------------------------------------------------------------------
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options = {}) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options = {}) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options = {}) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options = {}) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options = {}) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options = {}) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options = {}) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options = {}) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options = {}) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options = {}) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options = {}) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options = {}) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options = {}) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options = {}) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options = {}) override;
  WorkPtr barrier(const c10d::BarrierOptions& options = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks = false) override;

  // ---- messages -------------------------------------------------------------------------------------------------------------
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;  // the work's sourceRank()

  // ---- the group --------------------------------------------------------------------------------------------------------------
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  void abort() override;
  // Ends the group as the destructor does: what is under way is done first, the others hear that this rank has left.
  void shutdown() override;

  // A tensor in memory that all ranks of a machine share, for all-reduces that move nothing. Every rank calls it alike, in the same order.
  // Blocks: as a call does.
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  class CallWork;
  using Call = backends::TensorCall;

  WorkPtr call(c10d::OpType type, std::vector<Call> calls, std::chrono::milliseconds timeout, bool asynchronous);
  WorkPtr message(c10d::OpType type, const at::Tensor& tensor, int peer, int tag);
  WorkPtr keep(c10::intrusive_ptr<CallWork> work);
  Call reduction(collective::Op op, const c10d::ReduceOp& reduce, std::int64_t root, const at::Tensor& tensor) const;
  Call gathering(const at::Tensor& input, backends::Operand outputs) const;
  Call scattering(const c10d::ReduceOp& reduce, backends::Operand inputs, const at::Tensor& output) const;
  std::vector<std::int64_t> even_cuts(const char* what, const at::Tensor& whole, const at::Tensor& part) const;
  std::vector<std::int64_t> row_cuts(const at::Tensor& tensor, const std::vector<std::int64_t>& splits) const;
  Duration limit(std::chrono::milliseconds asked) const;
  collective::Group& group() const;

  c10::intrusive_ptr<Options> options_;
  std::unique_ptr<backends::StoreBulletin> bulletin_;
  std::shared_ptr<collective::Group> group_;  // null after shutdown()
  std::uint64_t sequence_ = 0;
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<CallWork>> coalesced_;
};

}  // namespace downpour
