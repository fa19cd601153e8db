#include "optimizers/shared_buffers.h"

#include "csrc/base/log.h"

namespace downpour::optimizers {

SharedBuffers::SharedBuffers(const Replica& replica, const Environment& environment)
    : world_size_(environment.world_size) {
  const auto& named = replica.training().buffers;
  if (named.empty()) {
    return;
  }
  if (replica.options().buffers() == BufferPolicy::kLocal) {
    kept_apart_ = named.size();
    if (world_size_ > 1 && environment.rank == 0) {
      log_warning("the module has ", named.size(), " floating-point buffers ('", named.front().first,
                  "' is the first): each worker keeps its own, and worker 0's are the ones to save; "
                  "they begin at their initial values again in a worker that is restarted or a job that is resumed; "
                  "BufferPolicy::kShared shares them and keeps them in snapshots");
    }
    return;
  }
  buffers_ = model::Trainable::of_buffers(named);
  for (std::size_t i = 0; i < size(); ++i) {
    counted_.push_back(buffers_->values(i).clone());
    untold_.push_back(torch::zeros_like(counted_.back()));
  }
  own_.resize(size());
}

void SharedBuffers::note_values_of_before() const {
  if (kept_apart_ > 0) {
    log_warning("the parameters go on where the job has been, but the module's ", kept_apart_,
                " floating-point buffers begin "
                "at the values that they have here: let them see some batches before you evaluate or save, or use "
                "BufferPolicy::kShared, which keeps them in snapshots");
  }
}

void SharedBuffers::add_to(ps::Schema& schema) const {
  if (buffers_) {
    for (std::size_t i = 0; i < size(); ++i) {
      schema.parameters.push_back(
          {"buffer " + (*buffers_)[i].name, buffers_->shape(i), buffers_->dtype(i), schema.groups});
    }
    ++schema.groups;
  }
}

void SharedBuffers::add_to(std::vector<ps::Hyper>& hypers) const {
  if (buffers_) {
    ps::Hyper hyper;
    hyper.lr = 1;
    hyper.plain = 1;
    hypers.push_back(hyper);
  }
}

void SharedBuffers::count_changes() {
  for (std::size_t i = 0; i < size(); ++i) {
    const torch::Tensor now = buffers_->values(i);
    torch::Tensor change = (counted_[i] - now).div_(world_size_);
    if (const torch::Tensor finite = change.isfinite(); !finite.all().item<bool>()) {
      const torch::Tensor same = (now == counted_[i]).logical_or(now.isnan().logical_and(counted_[i].isnan()));
      keep_own(i, finite.logical_or(same).logical_not());
      change.masked_fill_(finite.logical_not(), 0);
    }
    untold_[i].add_(change);
    counted_[i].copy_(now);
  }
}

void SharedBuffers::keep_own(std::size_t index, const torch::Tensor& elements) {
  if (!elements.any().item<bool>()) {
    return;
  }
  if (!own_[index].defined()) {
    log_warning("buffer '", (*buffers_)[index].name,
                "' changed from or to what is no finite number, which no sum over "
                "workers can hold: each worker keeps its own there");
    own_[index] = torch::zeros_like(elements);
  }
  own_[index].logical_or_(elements);
}

void SharedBuffers::push(ps::Client& client, std::size_t first_parameter) {
  count_changes();
  for (std::size_t i = 0; i < size(); ++i) {
    client.add_gradient(static_cast<std::uint32_t>(first_parameter + i), untold_[i].const_data_ptr());
    untold_[i].zero_();
  }
}

void SharedBuffers::before_pull() { count_changes(); }

void SharedBuffers::adopt(std::size_t index, std::int64_t begin, std::int64_t count, const void* source) {
  buffers_->copy_in(index, begin, count, source);
}

// The sum of all, and on top this worker's own changes that are still to be told.
void SharedBuffers::after_pull() {
  for (std::size_t i = 0; i < size(); ++i) {
    const torch::Tensor& buffer = (*buffers_)[i].tensor;
    buffer.sub_(untold_[i].to(buffer.device()));
    if (own_[i].defined()) {
      buffer.copy_(torch::where(own_[i], counted_[i], buffer.to(counted_[i].device())));
    }
    counted_[i].copy_(buffer);
  }
}

}  // namespace downpour::optimizers
