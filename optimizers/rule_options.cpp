#include "optimizers/rule_options.h"

namespace downpour::optimizers {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

// Their constructors are where torch checks values; no parameters are needed for that.
void check_values(const SGDOptions& options) { torch::optim::SGD(std::vector<torch::Tensor>{}, options); }
void check_values(const AdagradOptions& options) { torch::optim::Adagrad(std::vector<torch::Tensor>{}, options); }
void check_values(const AdamOptions& options) { torch::optim::Adam(std::vector<torch::Tensor>{}, options); }
void check_values(const AdamWOptions& options) { torch::optim::AdamW(std::vector<torch::Tensor>{}, options); }

template <typename Options>
void check_group(const torch::optim::OptimizerOptions& options, ps::RuleKind kind, std::size_t group) {
  const auto* typed = dynamic_cast<const Options*>(&options);
  TORCH_CHECK(typed != nullptr, "parameter group ", group, ": its options are not those of ",
              std::string(ps::name(kind)), ", the rule of this DownpourSGD");
  check_values(*typed);
}

ps::Hyper sgd_hyper(const SGDOptions& options) {
  ps::Hyper hyper;
  hyper.lr = options.lr();
  hyper.weight_decay = options.weight_decay();
  hyper.momentum = options.momentum();
  hyper.dampening = options.dampening();
  hyper.nesterov = options.nesterov() ? 1 : 0;
  return hyper;
}

ps::Hyper adagrad_hyper(const AdagradOptions& options) {
  ps::Hyper hyper;
  hyper.lr = options.lr();
  hyper.weight_decay = options.weight_decay();
  hyper.lr_decay = options.lr_decay();
  hyper.eps = options.eps();
  return hyper;
}

template <typename Options>
ps::Hyper adam_hyper(const Options& options) {
  ps::Hyper hyper;
  hyper.lr = options.lr();
  hyper.weight_decay = options.weight_decay();
  std::tie(hyper.beta1, hyper.beta2) = options.betas();
  hyper.eps = options.eps();
  hyper.amsgrad = options.amsgrad() ? 1 : 0;
  return hyper;
}

}  // namespace

ps::RuleKind rule_kind(const TorchRule& rule) {
  constexpr ps::RuleKind kKinds[] = {ps::RuleKind::kSgd, ps::RuleKind::kAdagrad, ps::RuleKind::kAdam,
                                     ps::RuleKind::kAdamW};
  return kKinds[rule.index()];
}

std::unique_ptr<torch::optim::OptimizerOptions> checked_defaults(const TorchRule& rule) {
  return std::visit(
      [](const auto& options) -> std::unique_ptr<torch::optim::OptimizerOptions> {
        check_values(options);
        return std::make_unique<std::decay_t<decltype(options)>>(options);
      },
      rule);
}

void check_group_options(ps::RuleKind kind, const torch::optim::OptimizerOptions& options, std::size_t group) {
  switch (kind) {
    case ps::RuleKind::kSgd: return check_group<SGDOptions>(options, kind, group);
    case ps::RuleKind::kAdagrad: return check_group<AdagradOptions>(options, kind, group);
    case ps::RuleKind::kAdam: return check_group<AdamOptions>(options, kind, group);
    case ps::RuleKind::kAdamW: return check_group<AdamWOptions>(options, kind, group);
  }
}

ps::Hyper to_hyper(ps::RuleKind kind, const torch::optim::OptimizerOptions& options) {
  switch (kind) {
    case ps::RuleKind::kSgd: return sgd_hyper(static_cast<const SGDOptions&>(options));
    case ps::RuleKind::kAdagrad: return adagrad_hyper(static_cast<const AdagradOptions&>(options));
    case ps::RuleKind::kAdam: return adam_hyper(static_cast<const AdamOptions&>(options));
    case ps::RuleKind::kAdamW: break;
  }
  return adam_hyper(static_cast<const AdamWOptions&>(options));
}

double initial_accumulator(const TorchRule& rule) {
  const auto* adagrad = std::get_if<AdagradOptions>(&rule);
  return adagrad != nullptr ? adagrad->initial_accumulator_value() : 0;
}

bool keeps_extra_buffer(ps::RuleKind kind, const ps::Hyper& hyper) {
  return kind == ps::RuleKind::kSgd ? hyper.momentum != 0 : hyper.amsgrad != 0;
}

}  // namespace downpour::optimizers
