#include "optimizers/replica.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"

namespace downpour::optimizers {
namespace {

using Group = torch::optim::OptimizerParamGroup;

// Walking a module's tree costs more than looking at its known parameters; a new one is found within this many steps.
constexpr std::int64_t kStepsBetweenWalks = 16;
constexpr std::int64_t kMostSteps = std::numeric_limits<std::int32_t>::max();

std::vector<torch::Tensor> tensors_of(const model::Trainable& trainable) {
  std::vector<torch::Tensor> tensors;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    tensors.push_back(trainable[i].tensor);
  }
  return tensors;
}

std::string place(std::size_t group, std::size_t parameter) {
  return "group " + std::to_string(group) + ", parameter " + std::to_string(parameter);
}

using Names = std::unordered_map<const void*, std::string>;  // by TensorImpl

Names names_of(const torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  return names;
}

// Those that have no name are called after their place.
std::vector<model::Trainable::Named> named_parameters(const std::vector<Group>& groups, const Names& names) {
  std::vector<model::Trainable::Named> named;
  std::unordered_map<const void*, std::size_t> group_of;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const torch::Tensor& tensor = groups[g].params()[i];
      const auto [known, added] = group_of.emplace(tensor.unsafeGetTensorImpl(), g);
      TORCH_CHECK(added || known->second == g, "parameter '", place(g, i), "': is in group ", known->second, " too");
      const auto name = names.find(tensor.unsafeGetTensorImpl());
      named.emplace_back(name == names.end() ? place(g, i) : name->second, tensor);
    }
  }
  return named;
}

void check_steps(const char* name, std::int64_t least, std::int64_t steps) {
  TORCH_CHECK(steps >= least && steps <= kMostSteps, name, ": expected ", least, " to ", kMostSteps, " steps, found ",
              steps);
}

void check_options(const DownpourOptions& options) {
  check_steps("n_push", 1, options.n_push());
  check_steps("n_fetch", 1, options.n_fetch());
  check_steps("warm_start_steps", 0, options.warm_start_steps());
  check_steps("warm_up_steps", 0, options.warm_up_steps());
  TORCH_CHECK(options.warm_start_steps() == 0 || options.warm_up_steps() == 0,
              "warm_start_steps and warm_up_steps: expected one of them at most, found ", options.warm_start_steps(),
              " and ", options.warm_up_steps());
  check_steps("max_lead", 0, options.max_lead().value_or(0));
  TORCH_CHECK(options.local_lr() >= 0, "local_lr: expected at least 0, found ", options.local_lr());
  TORCH_CHECK(options.max_staleness().value_or(0) >= 0, "max_staleness: expected at least 0 updates, found ",
              *options.max_staleness());
  TORCH_CHECK(options.max_grad_norm() >= 0, "max_grad_norm: expected at least 0, found ", options.max_grad_norm());
  TORCH_CHECK(options.replay_budget_bytes() >= 0, "replay_budget_bytes: expected at least 0, found ",
              options.replay_budget_bytes());
  // In milliseconds: a larger number of them is more than nanoseconds can count.
  constexpr auto kLongest = std::chrono::duration_cast<std::chrono::milliseconds>(kNever);
  TORCH_CHECK(options.call_deadline().count() > 0 && options.call_deadline() <= kLongest,
              "call_deadline: expected more than 0 ms and at most a year (", kLongest.count(), " ms), found ",
              options.call_deadline().count());
}

}  // namespace

Training Training::of(const torch::nn::Module& module) {
  std::vector<Group> groups;
  groups.emplace_back(tensors_of(model::Trainable::of(module)));
  return of(module, std::move(groups));
}

Training Training::of(const torch::nn::Module& module, std::vector<Group> groups) {
  Training training{model::Trainable(named_parameters(groups, names_of(module))), {}, module.weak_from_this(), {}, {}};
  training.groups = std::move(groups);
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) {
      training.frozen.emplace_back(item.key(), item.value());
    } else {
      TORCH_CHECK(training.trainable.find(item.value()), "parameter '", item.key(),
                  "': requires grad and is in no parameter group; put it into one, or freeze it");
    }
  }
  training.buffers = model::Trainable::float_buffers(module);
  training.knows_module = true;
  return training;
}

Training Training::of(std::vector<torch::Tensor> parameters) {
  Training training{model::Trainable::of(parameters), {}, {}, {}, {}};
  training.groups.emplace_back(tensors_of(training.trainable));
  return training;
}

Training Training::of(std::vector<Group> groups) {
  Training training{model::Trainable(named_parameters(groups, {})), {}, {}, {}, {}};
  training.groups = std::move(groups);
  return training;
}

Replica::Replica(Training training, const TorchRule& rule, DownpourOptions options, torch::optim::Optimizer& optimizer)
    : cadence(options.n_push(), options.n_fetch()),
      sum(training.trainable.size()),
      training_(std::move(training)),
      optimizer_(optimizer),
      options_(std::move(options)),
      rule_(rule_kind(rule)),
      accumulator_(initial_accumulator(rule)) {
  check_options(options_);
  TORCH_CHECK(
      options_.buffers() == BufferPolicy::kLocal || training_.knows_module,
      "buffers(BufferPolicy::kShared): expected a constructor that is given the module, whose buffers they are");
  list_groups();
  for (const ps::Hyper& hyper : hypers_) {
    extra_buffers_ = keeps_extra_buffer(rule_, hyper) ? 1 : extra_buffers_;
  }
  if (rule_ == ps::RuleKind::kAdagrad) {
    extra_buffers_ = 0;
  }
}

void Replica::list_groups() {
  group_.resize(trainable().size());
  const auto& groups = optimizer_.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // As they were given: torch replaces options of another type by its defaults.
    if (training_.groups[g].has_options()) {
      check_group_options(rule_, training_.groups[g].options(), g);
    }
    hypers_.push_back(to_hyper(rule_, groups[g].options()));
    auto& listed = listed_.emplace_back();
    for (const torch::Tensor& tensor : groups[g].params()) {
      listed.push_back(tensor.unsafeGetTensorImpl());
      group_[*trainable().find(tensor)] = static_cast<std::uint32_t>(g);
    }
  }
}

std::vector<ps::Hyper>& Replica::read_groups() {
  const auto& groups = optimizer_.param_groups();
  for (std::size_t g = 0; g < hypers_.size(); ++g) {
    hypers_[g] = to_hyper(rule_, groups[g].options());
  }
  return hypers_;
}

ps::Schema Replica::schema() const {
  ps::Schema schema;
  schema.rule = rule_;
  schema.groups = static_cast<std::uint32_t>(hypers_.size());
  schema.momentum_buffers = extra_buffers_;
  for (std::size_t i = 0; i < trainable().size(); ++i) {
    schema.parameters.push_back({trainable()[i].name, trainable().shape(i), trainable().dtype(i), group_[i]});
  }
  return schema;
}

void Replica::check(ValuesLie where) {
  check_groups();
  check_module();
  ++checks_;
  for (const model::Change& change : training_.trainable.look()) {
    TORCH_CHECK(change.storage_only, "parameter '", change.name, "': its ", change.what, " was ", change.expected,
                " when DownpourSGD was made and is ", change.found,
                " now; convert the model first, then make the optimizer");
    if (where == ValuesLie::kElsewhere) {
      warn_replaced(change);
    }
  }
}

void Replica::warn_replaced(const model::Change& change) {
  log_warning("parameter '", change.name,
              "' has new storage (torch::load or set_data?); what was loaded is overwritten by the "
              "next pull, for the servers' values count: load before DownpourSGD is made");
}

void Replica::check_groups() const {
  const auto& groups = optimizer_.param_groups();
  TORCH_CHECK(groups.size() <= listed_.size(), "parameter '", place(listed_.size(), 0),
              "': was added after DownpourSGD was made; "
              "give all groups to its constructor");
  TORCH_CHECK(groups.size() == listed_.size(), "parameter group ", groups.size(),
              ": was removed after DownpourSGD was made");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& params = groups[g].params();
    for (std::size_t i = 0; i < std::max(params.size(), listed_[g].size()); ++i) {
      TORCH_CHECK(i < listed_[g].size(), "parameter '", place(g, i),
                  "': was added after DownpourSGD was made; give all "
                  "parameters to its constructor");
      TORCH_CHECK(i < params.size() && params[i].unsafeGetTensorImpl() == listed_[g][i], "parameter '", place(g, i),
                  "': was replaced by another tensor after DownpourSGD was made");
    }
  }
}

void Replica::check_module() const {
  for (const auto& [name, tensor] : training_.frozen) {
    TORCH_CHECK(
        !tensor.requires_grad(), "parameter '", name,
        "': requires grad now but did not when DownpourSGD was made; "
        "make a new DownpourSGD after unfreezing; under parameter servers, whose parameters are fixed, in another job");
  }
  const auto module = checks_ % kStepsBetweenWalks == 0 ? training_.module.lock() : nullptr;
  if (module == nullptr) {
    return;
  }
  for (const auto& item : module->named_parameters()) {
    TORCH_CHECK(!item.value().requires_grad() || trainable().find(item.value()), "parameter '", item.key(), "' ",
                item.value().sizes(),
                ": was added to the module after DownpourSGD was made; make a new one (under parameter servers, whose "
                "parameters "
                "are fixed, in another job)");
  }
}

void Replica::local_step() {
  const double lr = options_.local_lr();
  if (lr == 0) {
    return;
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trainable().size(); ++i) {
    const torch::Tensor& gradient = trainable().gradient_in_place(i);
    if (gradient.defined()) {
      trainable()[i].tensor.add_(gradient, -lr);
    }
  }
}

}  // namespace downpour::optimizers
