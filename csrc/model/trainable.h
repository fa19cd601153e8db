#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/dtype.h"

// The parameters of a model where they lie: an ordered index that never moves or wraps them.
// (Arenas whose views are the parameters break silently at torch::load and to(); hence an index.)
namespace downpour::model {

struct TrainableTensor {
  std::string name;         // "conv1.weight", or "group 0, parameter 3" for a bare list
  torch::Tensor tensor;     // the user's own handle: the same TensorImpl
  std::int64_t offset = 0;  // elements before it in the flattened order
};

// What look() found since the last look.
struct Change {
  std::string name;
  std::string what;  // "dtype", "shape", "device", "storage"
  std::string expected, found;
  bool storage_only = false;  // torch::load, set_data: legal, the values lie elsewhere now
};

// Threads: one. Owns: handles and, for tensors that lie on a device, pinned staging memory. Shared parameters (one TensorImpl
// under two names) appear once, under the first.
class Trainable {
 public:
  using Named = std::pair<std::string, torch::Tensor>;

  // Parameters that require grad, in named_parameters() order. Frozen ones are not part of it.
  static Trainable of(const torch::nn::Module& module);
  static Trainable of(const std::vector<torch::Tensor>& tensors);
  explicit Trainable(std::vector<Named> named);
  // Floating-point buffers of a module (BatchNorm's running statistics) in named_buffers() order; they may be none.
  static std::vector<Named> float_buffers(const torch::nn::Module& module);
  static Trainable of_buffers(std::vector<Named> buffers);

  // Errors (c10::Error, naming the parameter): no parameters; a dtype other than float32 or float64; sparse; undefined; a
  // meta tensor; elements that share memory (expanded); not a leaf; a leaf that does not require grad.

  std::size_t size() const { return tensors_.size(); }
  const TrainableTensor& operator[](std::size_t index) const { return tensors_[index]; }
  std::vector<torch::Tensor> tensors() const;
  std::int64_t numel() const;
  Dtype dtype(std::size_t index) const;
  std::vector<std::int64_t> shape(std::size_t index) const;
  // Where the tensor is in the index; nullopt for one that is not part of it.
  std::optional<std::size_t> find(const torch::Tensor& tensor) const;

  // Looks at every tensor's data pointer, dtype, device and shape again; cheap enough for each step. Storage-only changes are
  // told once.
  std::vector<Change> look();

  // Elements [begin, begin+count) of parameter `index` in flattened order, to or from contiguous host memory of its dtype.
  // Any strides, CPU or CUDA (through pinned memory). Counts as an in-place update without grad: a backward pass that still
  // needs the old values fails instead of computing with the new ones.
  void copy_in(std::size_t index, std::int64_t begin, std::int64_t count, const void* source);
  // A contiguous CPU view or copy of the gradient; undefined where the parameter has none. Of a parameter on a device: valid
  // until the next call for it.
  // Errors: c10::Error for a sparse gradient or one of another dtype, naming the parameter.
  torch::Tensor gradient(std::size_t index) const;
  // A contiguous CPU view or copy of the values; on a device: as above.
  torch::Tensor values(std::size_t index) const;
  // The gradient where it lies, checked as by gradient().
  const torch::Tensor& gradient_in_place(std::size_t index) const;

 private:
  struct Seen {
    const void* address = nullptr;
    torch::Dtype dtype = torch::kFloat;
    torch::Device device = torch::kCPU;
    std::vector<std::int64_t> shape;
  };
  enum class Kind { kParameters, kBuffers };

  Trainable(std::vector<Named> named, Kind kind);
  void add(Named named);
  torch::Tensor on_host(std::size_t index, const torch::Tensor& tensor) const;

  std::vector<TrainableTensor> tensors_;
  std::vector<Seen> seen_;
  std::unordered_map<const void*, std::size_t> index_;  // by TensorImpl
  mutable std::vector<torch::Tensor> staging_;          // pinned; undefined for tensors on the CPU
};

}  // namespace downpour::model
