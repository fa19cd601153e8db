#include "optimizers/departures.h"

#include <algorithm>
#include <bit>

namespace downpour::optimizers {
namespace {

template <typename T>
double value_at(const torch::Tensor& dense, std::int64_t place) {
  return static_cast<double>(static_cast<const T*>(dense.const_data_ptr())[place]);
}

double value_at(const torch::Tensor& dense, std::int64_t place) {
  return dense.scalar_type() == torch::kDouble ? value_at<double>(dense, place) : value_at<float>(dense, place);
}

bool readable(const torch::Tensor& gradient) {
  return gradient.is_cpu() && gradient.layout() == torch::kStrided && gradient.is_non_overlapping_and_dense() &&
         (gradient.scalar_type() == torch::kFloat || gradient.scalar_type() == torch::kDouble);
}

// Scaling shows only in a value that is not zero.
std::int64_t first_nonzero(const torch::Tensor& gradient) {
  std::int64_t place = 0;
  while (place + 1 < gradient.numel() && value_at(gradient, place) == 0) {
    ++place;
  }
  return place;
}

// [sum, Euclidean norm] as bits, made on the gradient's device without waiting for it.
torch::Tensor sums_of(const torch::Tensor& gradient) {
  const torch::Tensor values = gradient.detach();
  return torch::stack({values.sum(torch::kDouble), values.norm(2, torch::kDouble)}).view(torch::kLong);
}

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

}  // namespace

void Departures::sample(const torch::Tensor& gradient, std::int64_t first, std::vector<double>& into) {
  into.clear();
  if (!readable(gradient) || gradient.numel() == 0) {
    return;
  }
  const std::int64_t step = std::max<std::int64_t>(gradient.numel() / kSamples, 1);
  into.push_back(value_at(gradient, first));
  for (std::int64_t i = 0; i < kSamples && i * step < gradient.numel(); ++i) {
    into.push_back(value_at(gradient, i * step));
  }
}

void Departures::mark(std::size_t index) {
  const torch::Tensor& gradient = trainable_[index].tensor.grad();
  Departure& departure = left_[index];
  ++departure.times;
  departure.address = gradient.unsafeGetTensorImpl();
  departure.version = static_cast<std::uint32_t>(gradient._version());
  departure.first_sample = readable(gradient) && gradient.numel() > 0 ? first_nonzero(gradient) : 0;
  sample(gradient, departure.first_sample, departure.samples);
  departure.sums = readable(gradient) ? torch::Tensor() : sums_of(gradient);
}

void Departures::check() const {
  for (std::size_t i = 0; i < left_.size(); ++i) {
    TORCH_CHECK(left_[i].times <= 1, "parameter '", trainable_[i].name, "': its gradient left ", left_[i].times,
                " times before one "
                "step(); under overlap(true) use no_sync() for all but the last backward of an accumulation");
    TORCH_CHECK(left_[i].times == 0 || is_unchanged(left_[i], trainable_[i].tensor.grad()), "parameter '",
                trainable_[i].name,
                "': its .grad was changed after it left for the servers; under "
                "overlap(true) use max_grad_norm for clipping and do not edit gradients, or switch overlap off");
  }
}

bool Departures::is_unchanged(const Departure& departure, const torch::Tensor& gradient) {
  if (!gradient.defined() || gradient.unsafeGetTensorImpl() != departure.address ||
      static_cast<std::uint32_t>(gradient._version()) != departure.version) {
    return false;
  }
  if (departure.sums.defined()) {
    return torch::equal(sums_of(gradient), departure.sums);
  }
  std::vector<double> now;
  sample(gradient, departure.first_sample, now);
  return std::ranges::equal(now, departure.samples, same_bits);
}

void Departures::clear() {
  for (Departure& departure : left_) {
    departure.times = 0;
  }
}

}  // namespace downpour::optimizers
