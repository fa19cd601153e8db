#include "backends/gradient_bucket.h"

namespace downpour::backends {
namespace {

bool is_compressible(at::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

at::ScalarType type_of(Compression compression) {
  return compression == Compression::kFloat16 ? at::kHalf : at::kBFloat16;
}

std::int64_t numel_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

}  // namespace

GradientBucket::GradientBucket(const std::vector<at::Tensor>& parameters, Compression compression,
                               const Allocate& allocate)
    : has_(parameters.size()) {
  const auto options = at::TensorOptions(parameters.front().scalar_type()).device(parameters.front().device());
  const auto count = static_cast<std::int64_t>(parameters.size());
  const std::int64_t elements = numel_of(parameters) + count;
  flat_ = allocate(elements, options).zero_();
  used_ = flat_.narrow(0, elements - count, count);
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    places_.push_back(flat_.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
  if (compression != Compression::kNone && is_compressible(flat_.scalar_type())) {
    compressed_ = allocate(elements, options.dtype(type_of(compression)));
    lost_ = at::zeros_like(flat_);
  }
}

bool GradientBucket::holds(std::size_t slot, const at::Tensor& gradient) const {
  return gradient.const_data_ptr() == places_[slot].const_data_ptr() && gradient.is_contiguous();
}

void GradientBucket::begin() {
  has_.assign(size(), false);
  missing_ = size();
  work_.reset();
}

void GradientBucket::take(std::size_t slot, const at::Tensor& gradient, double scale) {
  at::Tensor& place = places_[slot];
  if (holds(slot, gradient)) {
    place.mul_(scale);
  } else {
    at::mul_out(place, gradient, at::scalar_tensor(scale, gradient.options().device(at::kCPU)));
  }
  arrive(slot, 1);
}

void GradientBucket::leave_empty(std::size_t slot) {
  places_[slot].zero_();
  arrive(slot, 0);
}

void GradientBucket::arrive(std::size_t slot, double used) {
  used_.select(0, static_cast<std::int64_t>(slot)).fill_(used);
  has_[slot] = true;
  --missing_;
}

// With error feedback (Seide et al. 2014): what rounding loses goes into the next pass.
at::Tensor& GradientBucket::to_send() {
  if (!compressed_.defined()) {
    return flat_;
  }
  lost_.add_(flat_);
  compressed_.copy_(lost_);
  lost_.sub_(compressed_);
  return compressed_;
}

void GradientBucket::reduce(c10d::ProcessGroup& group, bool now) {
  std::vector<at::Tensor> tensors{to_send()};
  c10d::AllreduceOptions options;
  options.asyncOp = !now;
  work_ = group.allreduce(tensors, options);
}

void GradientBucket::finish() {
  work_->wait();
  if (compressed_.defined()) {
    flat_.copy_(compressed_);
  }
}

bool GradientBucket::was_used(std::size_t slot) const {
  return used_.select(0, static_cast<std::int64_t>(slot)).item<double>() > 0;
}

}  // namespace downpour::backends
