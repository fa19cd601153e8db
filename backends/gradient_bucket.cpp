#include "backends/gradient_bucket.h"

#include <algorithm>
#include <utility>

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

// As autograd lays out the parameter's gradients, so that copies, and the optimizer, run over memory in order.
at::Tensor view_like(const at::Tensor& flat, std::int64_t begin, const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), begin);
  }
  return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
}

}  // namespace

GradientBucket::GradientBucket(const std::vector<at::Tensor>& parameters, Compression compression,
                               const Allocate& allocate)
    : states_(parameters.size(), State::kMissing), counts_(parameters.size() + 1) {
  const auto options = at::TensorOptions(parameters.front().scalar_type()).device(parameters.front().device());
  const auto count = static_cast<std::int64_t>(counts_.size());
  const std::int64_t elements = numel_of(parameters) + count;
  const bool compresses = compression != Compression::kNone && is_compressible(parameters.front().scalar_type());
  flat_ = compresses ? at::zeros({elements}, options) : allocate(elements, options).zero_();
  marks_ = flat_.narrow(0, elements - count, count);
  all_used_ = at::ones_like(marks_);
  all_used_.narrow(0, count - 1, 1).zero_();
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    places_.push_back(view_like(flat_, begin, parameter));
    aliases_.push_back(places_.back().variable_data());
    begin += parameter.numel();
  }
  if (compresses) {
    compressed_ = allocate(elements, options.dtype(type_of(compression)));
    lost_ = at::zeros_like(flat_);
  }
}

at::Tensor GradientBucket::lost(std::size_t slot) const {
  const at::Tensor& place = places_[slot];
  return lost_.defined() ? lost_.as_strided(place.sizes(), place.strides(), place.storage_offset()) : lost_;
}

void GradientBucket::begin() {
  states_.assign(size(), State::kMissing);
  missing_ = size();
  given_up_ = false;
  work_.reset();
}

void GradientBucket::take(std::size_t slot, const at::Tensor& gradient, double scale) {
  at::Tensor& place = places_[slot];
  if (gradient.is_same(aliases_[slot])) {
    place.mul_(scale);
  } else {
    at::mul_out(place, gradient, at::scalar_tensor(scale, at::kDouble));
  }
  arrive(slot, State::kUsed);
}

void GradientBucket::leave_empty(std::size_t slot) {
  places_[slot].zero_();
  arrive(slot, State::kEmpty);
}

void GradientBucket::arrive(std::size_t slot, State state) {
  states_[slot] = state;
  --missing_;
}

void GradientBucket::give_up() {
  given_up_ = true;
  missing_ = 0;
}

void GradientBucket::write_marks() {
  if (!given_up_ && std::ranges::all_of(states_, [](State state) { return state == State::kUsed; })) {
    marks_.copy_(all_used_);
    return;
  }
  std::vector<double> marks;
  for (const State state : states_) {
    marks.push_back(state == State::kUsed ? 1 : 0);
  }
  marks.push_back(given_up_ ? 1 : 0);
  marks_.copy_(at::tensor(marks, at::kDouble));
}

void GradientBucket::read_marks() {
  const at::Tensor marks = (marks_.is_complex() ? at::real(marks_) : marks_).to(at::kCPU, at::kDouble).contiguous();
  std::copy_n(marks.const_data_ptr<double>(), counts_.size(), counts_.begin());
}

// With error feedback (Seide et al. 2014): what rounding loses goes into the next pass. Not what overflow loses: it would never go away.
at::Tensor& GradientBucket::to_send() {
  if (!compressed_.defined()) {
    return flat_;
  }
  lost_.add_(flat_);
  compressed_.copy_(lost_);
  lost_.sub_(compressed_).nan_to_num_(0.0, 0.0, 0.0);
  return compressed_;
}

void GradientBucket::reduce(c10d::ProcessGroup& group, bool now) {
  write_marks();
  std::vector<at::Tensor> tensors{to_send()};
  c10d::AllreduceOptions options;
  options.asyncOp = !now;
  work_ = group.allreduce(tensors, options);
}

void GradientBucket::finish() {
  if (const auto work = std::exchange(work_, nullptr)) {  // none: a call that is done may return none
    work->wait();
  }
  if (compressed_.defined()) {
    flat_.copy_(compressed_);
  }
  read_marks();
}

}  // namespace downpour::backends
