#include "optimizers/departures.h"

#include "csrc/base/checksum.h"

namespace downpour::optimizers {
namespace {

// Its elements are one piece of memory that we can read.
bool is_readable(const torch::Tensor& gradient) {
  return gradient.is_cpu() && gradient.layout() == torch::kStrided && gradient.is_non_overlapping_and_dense();
}

std::uint64_t checksum_of(const torch::Tensor& gradient) {
  return checksum({static_cast<const std::byte*>(gradient.const_data_ptr()), gradient.nbytes()});
}

// [sum, Euclidean norm] as bits, made on the gradient's device without waiting for it.
torch::Tensor sums_of(const torch::Tensor& gradient) {
  const torch::Tensor values = gradient.detach();
  return torch::stack({values.sum(torch::kDouble), values.norm(2, torch::kDouble)}).view(torch::kLong);
}

}  // namespace

void Departures::mark(std::size_t index) {
  const torch::Tensor& gradient = trainable_[index].tensor.grad();
  Departure& departure = left_[index];
  ++departure.times;
  departure.address = gradient.unsafeGetTensorImpl();
  departure.version = static_cast<std::uint32_t>(gradient._version());
  departure.checksum = is_readable(gradient) ? checksum_of(gradient) : 0;
  departure.sums = is_readable(gradient) ? torch::Tensor() : sums_of(gradient);
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
  return departure.sums.defined() ? torch::equal(sums_of(gradient), departure.sums)
                                  : is_readable(gradient) && checksum_of(gradient) == departure.checksum;
}

void Departures::clear() {
  for (Departure& departure : left_) {
    departure.times = 0;
  }
}

}  // namespace downpour::optimizers
