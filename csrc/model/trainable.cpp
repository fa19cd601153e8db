#include "csrc/model/trainable.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace downpour::model {
namespace {

template <typename Value>
std::string text(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

bool elements_share_memory(const torch::Tensor& tensor) {
  for (std::int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    if (tensor.size(dimension) > 1 && tensor.stride(dimension) == 0) {
      return tensor.numel() > 0;
    }
  }
  return false;
}

void check_tensor(const std::string& name, const torch::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "parameter '", name, "': expected a tensor, found an undefined one");
  TORCH_CHECK(tensor.layout() == torch::kStrided, "parameter '", name, "': expected a dense tensor, found layout ",
              tensor.layout(), "; sparse parameters are not supported");
  TORCH_CHECK(tensor.scalar_type() == torch::kFloat || tensor.scalar_type() == torch::kDouble, "parameter '", name,
              "': expected dtype float32 or float64, found ", tensor.scalar_type());
  TORCH_CHECK(!tensor.is_meta(), "parameter '", name, "': is on the meta device and has no values");
  TORCH_CHECK(!elements_share_memory(tensor), "parameter '", name, "' ", tensor.sizes(), " with strides ",
              tensor.strides(),
              ": several elements share memory (expanded), so it cannot be updated in place; use a contiguous copy");
}

void check_parameter(const std::string& name, const torch::Tensor& tensor) {
  check_tensor(name, tensor);
  TORCH_CHECK(tensor.is_leaf(), "parameter '", name,
              "': is the result of a computation, not a leaf; gradients never reach it");
  TORCH_CHECK(tensor.requires_grad(), "parameter '", name,
              "': does not require grad; leave it out, or give the module, whose "
              "frozen parameters are skipped");
}

// Row by row where the range is a part of the tensor, so that each copy is one of a whole (strided) block.
void copy_range(const torch::Tensor& into, std::int64_t begin, std::int64_t count, const char* source) {
  if (count == 0) {
    return;
  }
  if (count == into.numel()) {
    into.copy_(torch::from_blob(const_cast<char*>(source), into.sizes(),
                                into.options().device(torch::kCPU).requires_grad(false)));
    return;
  }
  const std::int64_t row = into.numel() / into.size(0);
  const auto bytes = static_cast<std::int64_t>(into.element_size());
  while (count > 0) {
    const std::int64_t at = begin / row;
    const std::int64_t offset = begin % row;
    const bool whole_rows = offset == 0 && count >= row;
    const std::int64_t taken = whole_rows ? count / row * row : std::min(count, row - offset);
    if (whole_rows) {
      const auto rows = into.narrow(0, at, taken / row);
      copy_range(rows, 0, taken, source);
    } else {
      copy_range(into.select(0, at), offset, taken, source);
    }
    begin += taken;
    count -= taken;
    source += taken * bytes;
  }
}

std::string numbered(std::size_t group, std::size_t index) {
  return "group " + std::to_string(group) + ", parameter " + std::to_string(index);
}

}  // namespace

Trainable Trainable::of(const torch::nn::Module& module) {
  std::vector<Named> named;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return Trainable(std::move(named));
}

Trainable Trainable::of(const std::vector<torch::Tensor>& tensors) {
  std::vector<Named> named;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    named.emplace_back(numbered(0, i), tensors[i]);
  }
  return Trainable(std::move(named));
}

std::vector<Trainable::Named> Trainable::float_buffers(const torch::nn::Module& module) {
  std::vector<Named> named;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && item.value().is_floating_point()) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

Trainable Trainable::of_buffers(std::vector<Named> buffers) { return Trainable(std::move(buffers), Kind::kBuffers); }

Trainable::Trainable(std::vector<Named> named) : Trainable(std::move(named), Kind::kParameters) {}

Trainable::Trainable(std::vector<Named> named, Kind kind) {
  TORCH_CHECK(!named.empty() || kind == Kind::kBuffers,
              "there are no parameters to train: every one is frozen, or there is none");
  for (auto& item : named) {
    if (kind == Kind::kParameters) {
      check_parameter(item.first, item.second);
    } else {
      check_tensor(item.first, item.second);
    }
    add(std::move(item));
  }
  staging_.resize(tensors_.size());
}

void Trainable::add(Named named) {
  auto& [name, tensor] = named;
  if (!index_.emplace(tensor.unsafeGetTensorImpl(), tensors_.size()).second) {
    return;
  }
  seen_.push_back({tensor.const_data_ptr(), tensor.scalar_type(), tensor.device(), tensor.sizes().vec()});
  const std::int64_t offset = numel();
  tensors_.push_back({std::move(name), std::move(tensor), offset});
}

std::vector<torch::Tensor> Trainable::tensors() const {
  std::vector<torch::Tensor> result;
  for (const TrainableTensor& one : tensors_) {
    result.push_back(one.tensor);
  }
  return result;
}

std::int64_t Trainable::numel() const {
  return tensors_.empty() ? 0 : tensors_.back().offset + tensors_.back().tensor.numel();
}

Dtype Trainable::dtype(std::size_t index) const {
  return tensors_[index].tensor.scalar_type() == torch::kDouble ? Dtype::kFloat64 : Dtype::kFloat32;
}

std::vector<std::int64_t> Trainable::shape(std::size_t index) const { return tensors_[index].tensor.sizes().vec(); }

std::optional<std::size_t> Trainable::find(const torch::Tensor& tensor) const {
  const auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Change> Trainable::look() {
  std::vector<Change> changes;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [name, tensor, offset] = tensors_[i];
    Seen& seen = seen_[i];
    if (tensor.scalar_type() != seen.dtype) {
      changes.push_back({name, "dtype", text(seen.dtype), text(tensor.scalar_type())});
    } else if (tensor.sizes() != seen.shape) {
      changes.push_back({name, "shape", text(at::IntArrayRef(seen.shape)), text(tensor.sizes())});
    } else if (tensor.device() != seen.device) {
      changes.push_back({name, "device", text(seen.device), text(tensor.device())});
    } else if (tensor.const_data_ptr() != seen.address) {
      changes.push_back({name, "storage", text(seen.address), text(tensor.const_data_ptr()), true});
      seen.address = tensor.const_data_ptr();
    }
  }
  return changes;
}

void Trainable::copy_in(std::size_t index, std::int64_t begin, std::int64_t count, const void* source) {
  const torch::Tensor& tensor = tensors_[index].tensor;
  TORCH_INTERNAL_ASSERT(begin >= 0 && count >= 0 && begin + count <= tensor.numel());
  const torch::NoGradGuard no_grad;
  if (tensor.is_cpu() && tensor.is_contiguous()) {
    const auto bytes = static_cast<std::size_t>(tensor.element_size());
    std::memcpy(static_cast<char*>(tensor.data_ptr()) + static_cast<std::size_t>(begin) * bytes, source,
                static_cast<std::size_t>(count) * bytes);
    tensor.unsafeGetTensorImpl()->bump_version();
    return;
  }
  if (!tensor.is_cpu()) {
    // Through pinned memory: a device reads pageable memory only by way of another copy.
    const torch::Tensor staged = on_host(index, torch::Tensor()).flatten().narrow(0, begin, count);
    std::memcpy(staged.data_ptr(), source, static_cast<std::size_t>(count * staged.element_size()));
    copy_range(tensor, begin, count, static_cast<const char*>(staged.const_data_ptr()));
    return;
  }
  copy_range(tensor, begin, count, static_cast<const char*>(source));
}

// Contiguous on the CPU: the tensor itself where it is, else a copy. An undefined one only makes the staging memory.
torch::Tensor Trainable::on_host(std::size_t index, const torch::Tensor& tensor) const {
  if (tensor.defined() && tensor.is_cpu()) {
    return tensor.detach().contiguous();
  }
  torch::Tensor& staging = staging_[index];
  const torch::Tensor& own = tensors_[index].tensor;
  if (!staging.defined()) {
    staging = torch::empty(own.sizes(), torch::TensorOptions(own.dtype()).pinned_memory(own.is_cuda()));
  }
  if (tensor.defined()) {
    const torch::NoGradGuard no_grad;
    staging.copy_(tensor);
  }
  return staging;
}

const torch::Tensor& Trainable::gradient_in_place(std::size_t index) const {
  const auto& [name, tensor, offset] = tensors_[index];
  const torch::Tensor& gradient = tensor.grad();
  if (!gradient.defined()) {
    return gradient;
  }
  TORCH_CHECK(gradient.layout() == torch::kStrided, "parameter '", name,
              "': its gradient is sparse, which is not supported yet; "
              "use dense gradients (for Embedding: sparse(false))");
  TORCH_CHECK(gradient.scalar_type() == tensor.scalar_type(), "parameter '", name, "': expected a gradient of dtype ",
              tensor.scalar_type(), ", found ", gradient.scalar_type());
  TORCH_CHECK(gradient.sizes() == tensor.sizes(), "parameter '", name, "': expected a gradient of shape ",
              tensor.sizes(), ", found ", gradient.sizes());
  return gradient;
}

torch::Tensor Trainable::gradient(std::size_t index) const {
  const torch::Tensor& gradient = gradient_in_place(index);
  return gradient.defined() ? on_host(index, gradient) : torch::Tensor();
}

torch::Tensor Trainable::values(std::size_t index) const { return on_host(index, tensors_[index].tensor); }

}  // namespace downpour::model
