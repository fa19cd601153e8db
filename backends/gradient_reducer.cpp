#include "backends/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <span>
#include <utility>

#include "backends/bucket_layout.h"
#include "backends/process_group_downpour.h"
#include "backends/same_on_all_ranks.h"
#include "csrc/base/error.h"

namespace downpour::backends {
namespace {

constexpr double kBytesInMb = 1 << 20;
constexpr std::int64_t kNever = -2;  // no version, nor one before a version

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str("'", name, "' ", tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

// Gradients come from the last layer on.
std::vector<std::size_t> from_the_last(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) {
    order[i] = count - 1 - i;
  }
  return order;
}

}  // namespace

// Owner: the callback that autograd keeps as long as the graph task lives.
class GradientReducer::Pass {
 public:
  explicit Pass(std::shared_ptr<GradientReducer> reducer) : reducer_(std::move(reducer)) {}
  ~Pass() {
    if (is_open_) {
      give_up();
    }
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  bool is_open() const { return is_open_; }
  void close() { is_open_ = false; }

  void end() {
    const at::NoGradGuard no_grad;
    reducer_->fill_rest();
    reducer_->reduce_complete();
    reducer_->conclude(*this);
  }

 private:
  void give_up() noexcept {
    try {
      const at::NoGradGuard no_grad;
      reducer_->give_up();
      reducer_->conclude(*this);
    } catch (...) {
      // backward() throws what has ended the pass
    }
  }

  std::shared_ptr<GradientReducer> reducer_;
  bool is_open_ = true;
};

// ---- buckets ---------------------------------------------------------------------------------------------------------------

GradientReducer::GradientReducer(std::vector<NamedParameter> parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                                 const DistributedDataParallelOptions& options, Action before_pass,
                                 Action after_reduction)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(options),
      before_pass_(std::move(before_pass)),
      after_reduction_(std::move(after_reduction)),
      scale_(1.0 / group_->getSize()) {
  lay_out(from_the_last(parameters_.size()));
}

void GradientReducer::lay_out(const std::vector<std::size_t>& order) {
  std::map<std::string, int> kinds;
  std::vector<GradientSize> sizes;
  for (const NamedParameter& parameter : parameters_) {
    const auto kind = c10::str(parameter.tensor.scalar_type(), parameter.tensor.device());
    sizes.push_back({static_cast<std::int64_t>(parameter.tensor.nbytes()),
                     kinds.emplace(kind, static_cast<int>(kinds.size())).first->second});
  }
  const auto layout = lay_out_buckets(sizes, order, std::llround(options_.first_bucket_mb() * kBytesInMb),
                                      std::llround(options_.bucket_mb() * kBytesInMb));
  buckets_.clear();
  places_.resize(parameters_.size());
  versions_.assign(parameters_.size(), kNever);
  for (const auto& indices : layout) {
    std::vector<at::Tensor> tensors;
    for (const std::size_t index : indices) {
      places_[index] = {buckets_.size(), tensors.size()};
      tensors.push_back(parameters_[index].tensor);
    }
    buckets_.emplace_back(
        tensors, options_.compression(),
        [this](std::int64_t elements, const at::TensorOptions& terms) { return allocate(elements, terms); });
  }
}

// Memory that the ranks share is the group's as long as it lives, so the buckets of the first pass lie elsewhere.
at::Tensor GradientReducer::allocate(std::int64_t elements, const at::TensorOptions& terms) const {
  if (order_settled_ && terms.device().is_cpu()) {
    const auto backend = group_->getBackend(at::kCPU);
    if (auto* ours = dynamic_cast<ProcessGroupDownpour*>(backend.get())) {
      return ours->allocate({elements}, c10::typeMetaToScalarType(terms.dtype()));
    }
  }
  return at::empty({elements}, terms);
}

std::vector<std::int64_t> GradientReducer::bucket_bytes() const {
  std::vector<std::int64_t> result;
  for (const GradientBucket& bucket : buckets_) {
    result.push_back(bucket.bytes());
  }
  return result;
}

// ---- a pass: while it runs ----------------------------------------------------------------------------------------------------

void GradientReducer::reduce(std::size_t index) {
  const at::NoGradGuard no_grad;
  if (const auto pass = pass_.lock(); pass == nullptr || !pass->is_open()) {
    begin_pass();
  }
  if (!parameters_[index].tensor.grad().defined() || is_as_reduced(index)) {
    return;  // autograd calls the hook also where no gradient came
  }
  check_not_reduced(index);
  arrived_.push_back(index);
  take(index);
  reduce_complete();
}

void GradientReducer::begin_pass() {
  arrived_.clear();
  set_aside_.clear();
  next_ = 0;
  for (GradientBucket& bucket : buckets_) {
    bucket.begin();
  }
  auto pass = std::make_shared<Pass>(shared_from_this());
  pass_ = pass;
  torch::autograd::Engine::get_default_engine().queue_callback([pass = std::move(pass)] { pass->end(); });
  before_pass_();
}

// Nothing has touched it since: zero_grad() changes its version, or takes it away; so does autograd.
bool GradientReducer::is_as_reduced(std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].tensor.grad();
  return gradient.is_same(alias_of(index)) && gradient._version() == versions_[index];
}

// Nothing but autograd has touched it.
void GradientReducer::check_not_reduced(std::size_t index) const {
  const auto& [name, parameter] = parameters_[index];
  const bool is_added_to =
      parameter.grad().is_same(alias_of(index)) && parameter.grad()._version() == versions_[index] + 1;
  DOWNPOUR_CHECK(
      !is_added_to, "DistributedDataParallel: parameter '", name,
      "' got a gradient on top of one that was reduced already; call zero_grad() between two backward "
      "passes, accumulate under no_sync() before the one that reduces, and use it in one only of passes that run "
      "inside another");
}

void GradientReducer::check(std::size_t index, const at::Tensor& gradient) const {
  const auto& [name, parameter] = parameters_[index];
  DOWNPOUR_CHECK(gradient.layout() == at::kStrided, "DistributedDataParallel: parameter '", name,
                 "': expected a dense gradient, found a sparse one; build the embedding with sparse(false)");
  const at::Tensor& place = alias_of(index);
  DOWNPOUR_CHECK(gradient.sizes() == place.sizes() && gradient.scalar_type() == place.scalar_type() &&
                     gradient.device() == place.device() && parameter.sizes() == place.sizes(),
                 "DistributedDataParallel: expected a gradient of ", describe(name, place), ", found ",
                 describe(name, gradient), "; make DistributedDataParallel after to(), not before");
}

void GradientReducer::take(std::size_t index) {
  at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  check(index, gradient);
  bucket_of(index).take(places_[index].slot, gradient, scale_);
  gradient = alias_of(index);
  versions_[index] = gradient._version();
}

// In their order, whatever the order in which they fill. Behind the last one there is nothing left to overlap with.
void GradientReducer::reduce_complete() {
  for (; next_ < buckets_.size() && buckets_[next_].is_complete(); ++next_) {
    buckets_[next_].reduce(*group_, next_ + 1 == buckets_.size());
  }
}

// ---- a pass: its end ------------------------------------------------------------------------------------------------------------

// Parameters that this pass did not use.
void GradientReducer::fill_rest() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (bucket_of(i).has(places_[i].slot)) {
      continue;
    }
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (is_as_reduced(i)) {
      set_aside_.emplace_back(i, gradient.clone());
    } else if (gradient.defined() && gradient.any().item<bool>()) {
      take(i);  // passes under no_sync() have left it
      continue;
    }
    bucket_of(i).leave_empty(places_[i].slot);
  }
}

void GradientReducer::give_up() {
  for (std::size_t i = next_; i < buckets_.size(); ++i) {
    buckets_[i].give_up();
  }
  reduce_complete();
}

// What all ranks do alike, also the one that has an error of its own.
void GradientReducer::conclude(Pass& pass) {
  pass.close();
  finish_buckets();
  for (const GradientBucket& bucket : buckets_) {
    DOWNPOUR_CHECK(
        !bucket.was_given_up(),
        "DistributedDataParallel: the backward pass of some rank ended early with an error, so the gradients "
        "of this pass are undefined on every rank; the next pass can be right");
  }
  set_gradients();
  after_reduction_();
  ++passes_;
  if (!order_settled_) {
    settle_order();
  }
}

// All of them also after an error: none may touch the gradients' memory any more.
void GradientReducer::finish_buckets() {
  std::exception_ptr first;
  for (GradientBucket& bucket : buckets_) {
    try {
      bucket.finish();
    } catch (const std::exception&) {
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

void GradientReducer::set_gradients() {
  for (const auto& [index, gradient] : std::exchange(set_aside_, {})) {
    if (!was_used(index)) {
      alias_of(index).copy_(gradient);
      versions_[index] = alias_of(index)._version();
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (was_used(i)) {
      parameters_[i].tensor.mutable_grad() = alias_of(i);
      note_change(i);
    }
  }
}

// The reduction has changed it, which a graph that has saved it must hear of.
void GradientReducer::note_change(std::size_t index) {
  alias_of(index).unsafeGetTensorImpl()->bump_version();
  versions_[index] = alias_of(index)._version();
}

// Rank 0's order of arrival, once.
void GradientReducer::settle_order() {
  std::vector<std::int64_t> order(arrived_.begin(), arrived_.end());
  for (const std::size_t i : from_the_last(parameters_.size())) {
    if (std::ranges::find(arrived_, i) == arrived_.end()) {
      order.push_back(static_cast<std::int64_t>(i));
    }
  }
  const at::Tensor shared = at::tensor(order, at::kLong).to(parameters_.front().tensor.device());
  take_from_rank_0(*group_, shared);
  const at::Tensor agreed = shared.cpu();
  const std::span<const std::int64_t> indices(agreed.const_data_ptr<std::int64_t>(), parameters_.size());
  order_settled_ = true;
  move_to({indices.begin(), indices.end()});
}

void GradientReducer::move_to(const std::vector<std::size_t>& order) {
  std::vector<at::Tensor> aliases, lost;
  const auto versions = versions_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    aliases.push_back(alias_of(i));
    lost.push_back(bucket_of(i).lost(places_[i].slot));
  }
  lay_out(order);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (gradient.is_same(aliases[i])) {
      gradient = alias_of(i);
      gradient.copy_(aliases[i]);
      if (aliases[i]._version() == versions[i]) {
        note_change(i);
      }
    }
    if (lost[i].defined()) {
      bucket_of(i).lost(places_[i].slot).copy_(lost[i]);
    }
  }
}

}  // namespace downpour::backends
