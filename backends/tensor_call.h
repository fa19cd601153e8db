#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "csrc/collective/group.h"

namespace downpour::backends {

using Tensors = std::vector<at::Tensor>;

collective::ReduceOp reduce_op(const c10d::ReduceOp& op);  // Errors: Error for one that no rank could agree on

// What one collective call reads or writes: a tensor a piece, or one tensor cut into `cuts` elements each.
struct Operand {
  Tensors tensors;
  std::vector<std::int64_t> cuts;
};

// A tensor as bytes of this process: itself where it is that already, else a contiguous copy on the host.
class HostTensor {
 public:
  enum class Fill { kValues, kNothing };
  HostTensor(const at::Tensor& tensor, Fill fill);
  MutableBytes bytes() const { return {static_cast<std::byte*>(host_.data_ptr()), host_.nbytes()}; }
  void bring_home() const;  // to where it is from; nothing where it is that

 private:
  at::Tensor tensor_;
  at::Tensor host_;
};

// A collective call over tensors. A value; keeps them alive.
// Shapes: dense tensors on the CPU or a device, of one dtype and device; any strides.
class TensorCall {
 public:
  enum class Outputs { kWritten, kReadAndWritten };

  // `shape`: its type is taken from the tensors. Errors: Error naming the call and what is wrong with a tensor.
  TensorCall(collective::CallShape shape, Operand inputs, Operand outputs, Outputs use = Outputs::kWritten);

  // Errors: Error naming the call, the operand, expected against found bytes.
  void check(int rank, int world) const;

  const Tensors& outputs() const { return outputs_.tensors; }
  // Blocks, Errors: as Turn::run.
  void run(collective::Group::Turn& turn, Duration timeout) const;

 private:
  void check_tensors() const;

  collective::CallShape shape_;
  Operand inputs_;
  Operand outputs_;
  Outputs use_;
};

// What the caller's stream had to do when a call was begun: another thread that works on a tensor of that device waits for it.
class StreamMark {
 public:
  explicit StreamMark(const Tensors& tensors);
  void wait() const;  // blocks

 private:
  std::vector<std::shared_ptr<c10::Event>> events_;  // none: on the CPU there is no order to keep
};

// Errors: Error for none, several, a sparse one, or one of a device other than CPU and CUDA.
const at::Tensor& only_one(const char* what, const Tensors& tensors);

}  // namespace downpour::backends
