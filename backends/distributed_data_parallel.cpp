#include "backends/distributed_data_parallel.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "backends/agreed_buffers.h"
#include "backends/gradient_reducer.h"
#include "backends/same_on_all_ranks.h"
#include "csrc/base/error.h"
#include "csrc/model/gradient_hooks.h"

namespace downpour {

using backends::NamedParameter;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

namespace {

// A module's tensors as it names them, and those that train, shared ones once.
struct Inventory {
  std::vector<NamedParameter> trained, frozen;
  std::vector<at::Tensor> all, buffers;
  std::vector<std::string> lines;  // what must be the same on all ranks
};

std::string describe(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), tensor.is_cpu() ? "" : " on ",
                  tensor.is_cpu() ? "" : c10::DeviceTypeName(tensor.device().type(), true),
                  tensor.requires_grad() ? ", trained" : "");
}

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  DOWNPOUR_CHECK(tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()),
                 "DistributedDataParallel: parameter '", name,
                 "': expected a dense tensor on the CPU or a CUDA device, found layout ", tensor.layout(), " on ",
                 tensor.device());
}

void add_parameters(Inventory& inventory, const torch::nn::Module& module) {
  std::unordered_map<const void*, std::string> first_names;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    check_parameter(item.key(), tensor);
    const auto [first, is_new] = first_names.emplace(tensor.unsafeGetTensorImpl(), item.key());
    inventory.lines.push_back(c10::str("parameter '", item.key(), "' ", describe(tensor),
                                       is_new ? "" : ", shared with '" + first->second + "'"));
    if (is_new) {
      inventory.all.push_back(tensor);
      (tensor.requires_grad() ? inventory.trained : inventory.frozen).push_back({item.key(), tensor});
    }
  }
  DOWNPOUR_CHECK(!inventory.trained.empty(),
                 "DistributedDataParallel: the module has no parameter that requires a gradient");
}

Inventory take_inventory(const torch::nn::Module& module, const DistributedDataParallelOptions& options) {
  Inventory inventory;
  add_parameters(inventory, module);
  for (const auto& item : module.named_buffers()) {
    inventory.lines.push_back(c10::str("buffer '", item.key(), "' ", describe(item.value())));
    inventory.all.push_back(item.value());
    inventory.buffers.push_back(item.value());
  }
  inventory.lines.push_back(c10::str("first_bucket_mb ", options.first_bucket_mb(), ", bucket_mb ", options.bucket_mb(),
                                     ", compression ", static_cast<int>(options.compression()), ", buffers ",
                                     static_cast<int>(options.buffers())));
  return inventory;
}

void check_options(const DistributedDataParallelOptions& options) {
  DOWNPOUR_CHECK(options.first_bucket_mb() > 0 && options.bucket_mb() > 0,
                 "DistributedDataParallel: expected bucket sizes above 0 MB, found first_bucket_mb ",
                 options.first_bucket_mb(), " and bucket_mb ", options.bucket_mb());
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) {
    tensors.push_back(parameter.tensor);
  }
  return tensors;
}

// Their gradients would be each rank's own, and the replicas drift apart without a word.
void check_frozen(const std::vector<NamedParameter>& frozen) {
  for (const NamedParameter& parameter : frozen) {
    DOWNPOUR_CHECK(!parameter.tensor.requires_grad(), "DistributedDataParallel: parameter '", parameter.name,
                   "' was frozen and now requires a gradient; make a new DistributedDataParallel after unfreezing");
  }
}

}  // namespace

struct DistributedDataParallel::State {
  // Owners: this, and a pass under way.
  std::shared_ptr<backends::GradientReducer> reducer;  // none in a world of one: the plain loop, to the bit
  std::unique_ptr<model::GradientHooks> hooks;
  int silent = 0;  // NoSync objects that live

  void on_gradient(std::size_t index) const { silent > 0 ? reducer->keep(index) : reducer->reduce(index); }
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, GroupPtr group,
                                                 const DistributedDataParallelOptions& options)
    : state_(std::make_shared<State>()) {
  check_options(options);
  Inventory inventory = take_inventory(module, options);
  if (group->getSize() == 1) {
    return;
  }
  backends::check_same_on_all_ranks(*group, inventory.trained.front().tensor.device(),
                                    "DistributedDataParallel: the ranks' modules or options differ: ", inventory.lines);
  for (const at::Tensor& tensor : inventory.all) {
    backends::take_from_rank_0(*group, tensor);
  }
  auto leaves = tensors_of(inventory.trained);
  state_->reducer = std::make_shared<backends::GradientReducer>(
      std::move(inventory.trained), group, options, [frozen = std::move(inventory.frozen)] { check_frozen(frozen); },
      [group, buffers = backends::AgreedBuffers(inventory.buffers, options.buffers())] { buffers.share(*group); });
  state_->hooks = std::make_unique<model::GradientHooks>(
      std::move(leaves), [state = state_.get()](std::size_t index) { state->on_gradient(index); });
}

DistributedDataParallel::~DistributedDataParallel() { detach(); }

void DistributedDataParallel::detach() { state_->hooks.reset(); }

std::uint64_t DistributedDataParallel::passes() const { return state_->reducer ? state_->reducer->passes() : 0; }

std::vector<std::int64_t> DistributedDataParallel::bucket_bytes() const {
  return state_->reducer ? state_->reducer->bucket_bytes() : std::vector<std::int64_t>();
}

DistributedDataParallel::NoSync DistributedDataParallel::no_sync() { return NoSync(state_); }

DistributedDataParallel::NoSync::NoSync(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->silent; }

DistributedDataParallel::NoSync::~NoSync() { --state_->silent; }

}  // namespace downpour
