#include "backends/tensor_call.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace downpour::backends {
namespace {

using collective::Call;
using collective::CallShape;
using collective::ElementType;

// kOpaque8 for types that are only moved, byte by byte.
ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kBool: return ElementType::kBool;
    case at::kByte: return ElementType::kUint8;
    case at::kChar: return ElementType::kInt8;
    case at::kUInt16: return ElementType::kUint16;
    case at::kShort: return ElementType::kInt16;
    case at::kUInt32: return ElementType::kUint32;
    case at::kInt: return ElementType::kInt32;
    case at::kUInt64: return ElementType::kUint64;
    case at::kLong: return ElementType::kInt64;
    case at::kHalf: return ElementType::kFloat16;
    case at::kBFloat16: return ElementType::kBfloat16;
    case at::kFloat: return ElementType::kFloat32;
    case at::kDouble: return ElementType::kFloat64;
    case at::kComplexFloat: return ElementType::kComplex64;
    case at::kComplexDouble: return ElementType::kComplex128;
    default: return ElementType::kOpaque8;
  }
}

void check_dense(std::string_view what, const at::Tensor& tensor) {
  DOWNPOUR_CHECK(tensor.defined(), what, ": expected a tensor, found an undefined one");
  DOWNPOUR_CHECK(tensor.layout() == at::kStrided, what, ": expected a dense tensor, found layout ", tensor.layout(),
                 "; call to_dense() first");
  DOWNPOUR_CHECK(tensor.is_cpu() || tensor.is_cuda(), what, ": expected a tensor on the CPU or a CUDA device, found ",
                 tensor.device());
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

std::vector<HostTensor> on_host(const Operand& operand, HostTensor::Fill fill) {
  std::vector<HostTensor> result;
  result.reserve(operand.tensors.size());
  for (const at::Tensor& tensor : operand.tensors) {
    result.emplace_back(tensor, fill);
  }
  return result;
}

// `tensors`: where the operand's bytes are.
std::vector<MutableBytes> pieces_of(std::vector<MutableBytes> tensors, const Operand& operand) {
  if (operand.cuts.empty()) {
    return tensors;
  }
  std::vector<MutableBytes> pieces;
  MutableBytes rest = tensors.front();
  for (const std::int64_t elements : operand.cuts) {
    const auto bytes = static_cast<std::size_t>(elements) * operand.tensors.front().element_size();
    pieces.push_back(rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  return pieces;
}

std::vector<MutableBytes> bytes_of(const std::vector<HostTensor>& hosts) {
  std::vector<MutableBytes> result;
  std::ranges::transform(hosts, std::back_inserter(result), [](const HostTensor& host) { return host.bytes(); });
  return result;
}

// Of the right sizes, and nowhere.
std::vector<MutableBytes> sizes_of(const Tensors& tensors) {
  std::vector<MutableBytes> result;
  std::ranges::transform(tensors, std::back_inserter(result), [](const at::Tensor& tensor) {
    return MutableBytes(static_cast<std::byte*>(nullptr), tensor.numel() * tensor.element_size());
  });
  return result;
}

Call make_call(const CallShape& shape, const std::vector<MutableBytes>& inputs, std::vector<MutableBytes> outputs) {
  return {shape, {inputs.begin(), inputs.end()}, std::move(outputs)};
}

}  // namespace

collective::ReduceOp reduce_op(const c10d::ReduceOp& op) {
  using collective::ReduceOp;
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::kSum;
    case c10d::ReduceOp::AVG: return ReduceOp::kAverage;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN: return ReduceOp::kMinimum;
    case c10d::ReduceOp::MAX: return ReduceOp::kMaximum;
    case c10d::ReduceOp::BAND: return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR: return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR: return ReduceOp::kBitXor;
    default:
      throw Error(
          concat("reduce operation ", static_cast<int>(op.op_),
                 ": expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR; scale the tensor yourself instead of "
                 "PREMUL_SUM"));
  }
}

const at::Tensor& only_one(const char* what, const Tensors& tensors) {
  DOWNPOUR_CHECK(tensors.size() == 1, what, ": expected 1 tensor, found ", tensors.size());
  check_dense(what, tensors.front());
  return tensors.front();
}

// ---- one tensor ------------------------------------------------------------------------------------------------------------

// copy_ resolves strides, conjugation and the device, and is done when it returns.
HostTensor::HostTensor(const at::Tensor& tensor, Fill fill) : tensor_(tensor), host_(tensor) {
  if (!is_plain(tensor)) {
    host_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
    if (fill == Fill::kValues) {
      host_.copy_(tensor);
    }
  }
}

void HostTensor::bring_home() const {
  if (!host_.is_same(tensor_)) {
    tensor_.copy_(host_);
  }
}

StreamMark::StreamMark(const Tensors& tensors) {
  std::unordered_set<at::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.is_cpu() && devices.insert(tensor.device()).second) {
      const c10::impl::VirtualGuardImpl guard(tensor.device().type());
      events_.push_back(std::make_shared<c10::Event>(tensor.device().type()));
      events_.back()->record(guard.getStream(tensor.device()));
    }
  }
}

void StreamMark::wait() const {
  for (const auto& event : events_) {
    event->synchronize();
  }
}

// ---- one call --------------------------------------------------------------------------------------------------------------

TensorCall::TensorCall(CallShape shape, Operand inputs, Operand outputs, Outputs use)
    : shape_(shape), inputs_(std::move(inputs)), outputs_(std::move(outputs)), use_(use) {
  check_tensors();
  if (!outputs_.tensors.empty() || !inputs_.tensors.empty()) {
    const at::Tensor& first = outputs_.tensors.empty() ? inputs_.tensors.front() : outputs_.tensors.front();
    shape_.type = element_type(first.scalar_type());
    if (shape_.type == ElementType::kOpaque8 && shape_.count > 0) {
      shape_.count *= static_cast<std::int64_t>(first.element_size());
    }
  }
}

void TensorCall::check_tensors() const {
  const at::Tensor* first = nullptr;
  for (const Tensors* tensors : {&outputs_.tensors, &inputs_.tensors}) {
    for (const at::Tensor& tensor : *tensors) {
      check_dense(name(shape_.op), tensor);
      first = first == nullptr ? &tensor : first;
      DOWNPOUR_CHECK(tensor.scalar_type() == first->scalar_type() && tensor.device() == first->device(),
                     name(shape_.op), ": expected tensors of one dtype and device, found ", first->scalar_type(),
                     " on ", first->device(), " and ", tensor.scalar_type(), " on ", tensor.device());
    }
  }
}

void TensorCall::check(int rank, int world) const {
  const auto inputs = pieces_of(sizes_of(inputs_.tensors), inputs_);
  collective::check_call(make_call(shape_, inputs, pieces_of(sizes_of(outputs_.tensors), outputs_)), rank, world);
}

void TensorCall::run(collective::Group::Turn& turn, Duration timeout) const {
  const at::NoGradGuard no_grad;
  const std::vector<HostTensor> inputs = on_host(inputs_, HostTensor::Fill::kValues);
  const std::vector<HostTensor> outputs =
      on_host(outputs_, use_ == Outputs::kReadAndWritten ? HostTensor::Fill::kValues : HostTensor::Fill::kNothing);
  turn.run(make_call(shape_, pieces_of(bytes_of(inputs), inputs_), pieces_of(bytes_of(outputs), outputs_)), timeout);
  for (const HostTensor& output : outputs) {
    output.bring_home();
  }
}

}  // namespace downpour::backends
