#include "backends/distributed_data_parallel.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>

#include "backends/bucket_layout.h"
#include "backends/gradient_bucket.h"
#include "backends/process_group_downpour.h"
#include "backends/same_on_all_ranks.h"
#include "csrc/base/error.h"
#include "csrc/model/gradient_hooks.h"

namespace downpour {

using backends::GradientBucket;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

namespace {

constexpr double kBytesInMb = 1 << 20;
constexpr int kNoPass = -1;

struct Parameter {
  std::string name;
  at::Tensor tensor;
};

// Those that train, shared ones once.
std::vector<Parameter> parameters_of(const torch::nn::Module& module) {
  std::vector<Parameter> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

std::string describe(const std::string& name, const at::Tensor& tensor) {
  return c10::str("'", name, "' ", tensor.scalar_type(), " ", tensor.sizes());
}

std::vector<at::Tensor> float_buffers_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.is_floating_point() && buffer.numel() > 0) {
      result.push_back(buffer);
    }
  }
  return result;
}

void broadcast(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors{tensor.detach()};
  group.broadcast(tensors)->wait();
}

}  // namespace

// Hooks outlive a DistributedDataParallel that is destroyed in mid-pass no longer than the pass: they hold it weakly.
struct DistributedDataParallel::State : std::enable_shared_from_this<State> {
  State(torch::nn::Module& the_module, GroupPtr the_group, const DistributedDataParallelOptions& the_options);

  // ---- before the first pass
  void check_options() const;
  void check_modules() const;
  void take_rank_0s_values() const;
  void lay_out(const std::vector<std::size_t>& order);
  at::Tensor allocate(std::int64_t elements, const at::TensorOptions& terms) const;

  // ---- a pass
  void on_gradient(std::size_t index);
  void begin_pass(std::size_t first);
  void check_zeroed(std::size_t first) const;
  void check(std::size_t index, const at::Tensor& gradient) const;
  void take(std::size_t index);
  void reduce_complete();
  void end_pass();
  void fill_rest();
  void set_gradients();
  void share_buffers();
  void settle_order();
  void move_gradients(const std::vector<std::size_t>& order);

  GradientBucket& bucket_of(std::size_t index) { return buckets[places[index].bucket]; }
  const GradientBucket& bucket_of(std::size_t index) const { return buckets[places[index].bucket]; }
  std::size_t slot_of(std::size_t index) const { return places[index].slot; }
  double scale() const { return 1.0 / group->getSize(); }

  struct Place {
    std::size_t bucket, slot;
  };

  const GroupPtr group;
  const DistributedDataParallelOptions options;
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> all_parameters, all_buffers;  // frozen and integer ones too
  std::vector<at::Tensor> buffers;
  std::deque<GradientBucket> buckets;
  std::vector<Place> places;  // of each parameter
  std::unique_ptr<model::GradientHooks> hooks;

  int silent = 0;            // NoSync objects that live
  int pass = kNoPass;        // autograd's number of the pass that is under way, or was last
  bool accumulates = false;  // there are gradients of this rank alone
  bool order_settled = false;
  std::vector<std::size_t> arrived;          // in this order, in this pass
  std::vector<std::uint32_t> last_versions;  // of each gradient, after its last reduction
  std::size_t next = 0;                      // bucket to be reduced
  std::uint64_t passes = 0;
};

// ---- before the first pass -----------------------------------------------------------------------------------------------------

DistributedDataParallel::State::State(torch::nn::Module& the_module, GroupPtr the_group,
                                      const DistributedDataParallelOptions& the_options)
    : group(std::move(the_group)),
      options(the_options),
      parameters(parameters_of(the_module)),
      all_parameters(the_module.parameters()),
      all_buffers(the_module.buffers()),
      buffers(float_buffers_of(the_module)) {
  check_options();
  if (group->getSize() == 1) {
    return;  // the plain loop, to the bit and the microsecond
  }
  check_modules();
  take_rank_0s_values();
  std::vector<std::size_t> order(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = order.size() - 1 - i;  // gradients come from the last layer on
  }
  lay_out(order);
}

void DistributedDataParallel::State::check_options() const {
  DOWNPOUR_CHECK(!parameters.empty(), "DistributedDataParallel: the module has no parameter that requires a gradient");
  DOWNPOUR_CHECK(options.first_bucket_mb() > 0 && options.bucket_mb() > 0,
                 "DistributedDataParallel: expected bucket sizes above 0 MB, found first_bucket_mb ",
                 options.first_bucket_mb(), " and bucket_mb ", options.bucket_mb());
  for (const Parameter& parameter : parameters) {
    DOWNPOUR_CHECK(
        parameter.tensor.layout() == at::kStrided && (parameter.tensor.is_cpu() || parameter.tensor.is_cuda()),
        "DistributedDataParallel: parameter '", parameter.name,
        "': expected a dense tensor on the CPU or a CUDA "
        "device, found ",
        parameter.tensor.layout(), " on ", parameter.tensor.device());
  }
}

void DistributedDataParallel::State::check_modules() const {
  std::vector<std::string> lines;
  for (const Parameter& parameter : parameters) {
    lines.push_back(describe(parameter.name, parameter.tensor));
  }
  lines.push_back(c10::str(all_parameters.size(), " parameters, ", all_buffers.size(), " buffers, ",
                           options.first_bucket_mb(), " and ", options.bucket_mb(), " MB, compression ",
                           static_cast<int>(options.compression()), ", buffer policy ",
                           static_cast<int>(options.buffers())));
  backends::check_same_on_all_ranks(*group, "DistributedDataParallel: the ranks' modules or options differ: parameter ",
                                    lines);
}

void DistributedDataParallel::State::take_rank_0s_values() const {
  for (const std::vector<at::Tensor>* tensors : {&all_parameters, &all_buffers}) {
    for (const at::Tensor& tensor : *tensors) {
      broadcast(*group, tensor);
    }
  }
}

void DistributedDataParallel::State::lay_out(const std::vector<std::size_t>& order) {
  std::map<std::string, int> kinds;
  std::vector<backends::GradientSize> sizes;
  for (const Parameter& parameter : parameters) {
    const auto kind = c10::str(parameter.tensor.scalar_type(), parameter.tensor.device());
    sizes.push_back({static_cast<std::int64_t>(parameter.tensor.nbytes()),
                     kinds.emplace(kind, static_cast<int>(kinds.size())).first->second});
  }
  const auto layout = backends::lay_out_buckets(sizes, order, std::llround(options.first_bucket_mb() * kBytesInMb),
                                                std::llround(options.bucket_mb() * kBytesInMb));
  buckets.clear();
  places.resize(parameters.size());
  last_versions.assign(parameters.size(), 0);
  for (const auto& indices : layout) {
    std::vector<at::Tensor> tensors;
    for (const std::size_t index : indices) {
      places[index] = {buckets.size(), tensors.size()};
      tensors.push_back(parameters[index].tensor);
    }
    buckets.emplace_back(tensors, options.compression(), [this](std::int64_t elements, const at::TensorOptions& terms) {
      return allocate(elements, terms);
    });
  }
}

at::Tensor DistributedDataParallel::State::allocate(std::int64_t elements, const at::TensorOptions& terms) const {
  if (terms.device().is_cpu()) {
    const auto backend = group->getBackend(at::kCPU);
    if (auto* ours = dynamic_cast<ProcessGroupDownpour*>(backend.get())) {
      return ours->allocate({elements}, c10::typeMetaToScalarType(terms.dtype()));
    }
  }
  return at::empty({elements}, terms);
}

// ---- a pass ----------------------------------------------------------------------------------------------------------------------

// A post-accumulate hook.
void DistributedDataParallel::State::on_gradient(std::size_t index) {
  const at::NoGradGuard no_grad;
  if (const int now = torch::autograd::get_current_graph_task_id(); now != pass) {
    pass = kNoPass;  // what fails in here is no pass
    begin_pass(index);
    pass = now;
  }
  if (silent == 0) {
    arrived.push_back(index);
    take(index);
    reduce_complete();
  }
}

void DistributedDataParallel::State::begin_pass(std::size_t first) {
  if (!accumulates) {
    check_zeroed(first);
  }
  if (silent > 0) {
    accumulates = true;
    return;
  }
  arrived.clear();
  next = 0;
  for (GradientBucket& bucket : buckets) {
    bucket.begin();
  }
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->end_pass();
    }
  });
}

// A gradient that still lies in its bucket was reduced already: it is all zero, or nobody has called zero_grad(). The first one of
// this pass has been added to by now; whoever has zeroed it before has changed it twice.
void DistributedDataParallel::State::check_zeroed(std::size_t first) const {
  for (std::size_t i = 0; passes > 0 && i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].tensor.grad();
    if (!gradient.defined() || !bucket_of(i).holds(slot_of(i), gradient)) {
      continue;
    }
    const bool zeroed = i == first ? gradient._version() > last_versions[i] + 1 : !gradient.any().item<bool>();
    DOWNPOUR_CHECK(
        zeroed, "DistributedDataParallel: parameter '", parameters[i].name,
        "' has the gradient that the last backward pass reduced, and would get it reduced twice; call zero_grad() "
        "before each pass, or accumulate under no_sync()");
  }
}

void DistributedDataParallel::State::check(std::size_t index, const at::Tensor& gradient) const {
  const at::Tensor& parameter = parameters[index].tensor;
  const std::string& name = parameters[index].name;
  DOWNPOUR_CHECK(gradient.layout() == at::kStrided, "DistributedDataParallel: parameter '", name,
                 "': expected a dense gradient, found a sparse one; build the embedding with sparse(false)");
  const at::Tensor place = bucket_of(index).alias(slot_of(index));
  DOWNPOUR_CHECK(gradient.sizes() == place.sizes() && gradient.scalar_type() == place.scalar_type() &&
                     gradient.device() == place.device() && parameter.sizes() == place.sizes(),
                 "DistributedDataParallel: expected a gradient of ", describe(name, place), " on ", place.device(),
                 ", found ", describe(name, gradient), " on ", gradient.device(),
                 "; make DistributedDataParallel after to(), not before");
}

void DistributedDataParallel::State::take(std::size_t index) {
  at::Tensor& gradient = parameters[index].tensor.mutable_grad();
  check(index, gradient);
  GradientBucket& bucket = bucket_of(index);
  bucket.take(slot_of(index), gradient, scale());
  if (!bucket.holds(slot_of(index), gradient)) {
    gradient = bucket.alias(slot_of(index));
  }
}

// In their order, whatever the order in which they fill. Behind the last one there is nothing left to overlap with.
void DistributedDataParallel::State::reduce_complete() {
  while (next < buckets.size() && buckets[next].is_complete()) {
    buckets[next].reduce(*group, next + 1 == buckets.size());
    ++next;
  }
}

void DistributedDataParallel::State::end_pass() {
  const at::NoGradGuard no_grad;
  pass = kNoPass;
  fill_rest();
  reduce_complete();
  for (GradientBucket& bucket : buckets) {
    bucket.finish();
  }
  set_gradients();
  share_buffers();
  accumulates = false;
  ++passes;
  if (!order_settled) {
    settle_order();
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].tensor.grad();
    last_versions[i] = gradient.defined() ? gradient._version() : 0;
  }
}

// Parameters that this pass did not use; what earlier passes under no_sync() have left counts.
void DistributedDataParallel::State::fill_rest() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (bucket_of(i).has(slot_of(i))) {
      continue;
    }
    if (parameters[i].tensor.grad().defined()) {
      take(i);
    } else {
      bucket_of(i).leave_empty(slot_of(i));
    }
  }
}

void DistributedDataParallel::State::set_gradients() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].tensor.mutable_grad();
    if (!gradient.defined() && bucket_of(i).was_used(slot_of(i))) {
      gradient = bucket_of(i).alias(slot_of(i));
    }
  }
}

void DistributedDataParallel::State::share_buffers() {
  if (options.buffers() == DdpBuffers::kLocal || buffers.empty()) {
    return;
  }
  std::map<std::string, std::vector<at::Tensor>> alike;
  for (const at::Tensor& buffer : buffers) {
    alike[c10::str(buffer.scalar_type(), buffer.device())].push_back(buffer);
  }
  for (const auto& [kind, tensors] : alike) {
    std::vector<at::Tensor> flat;
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(tensor.reshape({-1}));
      sizes.push_back(tensor.numel());
    }
    std::vector<at::Tensor> all{at::cat(flat)};
    if (options.buffers() == DdpBuffers::kFromRank0) {
      group->broadcast(all)->wait();
    } else {
      group->allreduce(all)->wait();
      all[0].mul_(scale());
    }
    const auto parts = all[0].split_with_sizes(sizes);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(parts[i].view(tensors[i].sizes()));
    }
  }
}

// Rank 0's order of arrival, once.
void DistributedDataParallel::State::settle_order() {
  order_settled = true;
  std::vector<std::int64_t> order(arrived.begin(), arrived.end());
  for (std::size_t i = parameters.size(); i-- > 0;) {
    if (std::ranges::find(arrived, i) == arrived.end()) {
      order.push_back(static_cast<std::int64_t>(i));
    }
  }
  const at::Tensor shared = at::tensor(order, at::kLong);
  broadcast(*group, shared);
  const std::span<const std::int64_t> agreed(shared.const_data_ptr<std::int64_t>(), parameters.size());
  std::vector<std::size_t> wanted(agreed.begin(), agreed.end());
  std::vector<std::size_t> current(parameters.size());
  for (std::size_t i = 0; i < current.size(); ++i) {
    current[i] = current.size() - 1 - i;
  }
  if (wanted != current) {
    move_gradients(wanted);
  }
}

void DistributedDataParallel::State::move_gradients(const std::vector<std::size_t>& order) {
  std::vector<bool> ours;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].tensor.grad();
    ours.push_back(gradient.defined() && bucket_of(i).holds(slot_of(i), gradient));
  }
  lay_out(order);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (ours[i]) {
      at::Tensor& gradient = parameters[i].tensor.mutable_grad();
      gradient = bucket_of(i).alias(slot_of(i)).copy_(gradient);
    }
  }
}

// ---- what users see ----------------------------------------------------------------------------------------------------------------

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, GroupPtr group,
                                                 const DistributedDataParallelOptions& options)
    : state_(std::make_shared<State>(module, std::move(group), options)) {
  if (state_->group->getSize() > 1) {
    std::vector<at::Tensor> leaves;
    for (const Parameter& parameter : state_->parameters) {
      leaves.push_back(parameter.tensor);
    }
    state_->hooks = std::make_unique<model::GradientHooks>(
        std::move(leaves), [state = state_.get()](std::size_t index) { state->on_gradient(index); });
  }
}

DistributedDataParallel::~DistributedDataParallel() { detach(); }

void DistributedDataParallel::detach() { state_->hooks.reset(); }

std::uint64_t DistributedDataParallel::passes() const { return state_->passes; }

std::vector<std::int64_t> DistributedDataParallel::bucket_bytes() const {
  std::vector<std::int64_t> result;
  for (const GradientBucket& bucket : state_->buckets) {
    result.push_back(bucket.bytes());
  }
  return result;
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(state_); }

DistributedDataParallel::NoSync::NoSync(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->silent; }

DistributedDataParallel::NoSync::~NoSync() { --state_->silent; }

}  // namespace downpour
