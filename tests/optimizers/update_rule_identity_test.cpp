// The server-side update rules against torch::optim itself, with the instruction set that LibTorch chooses here.
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>

#include "csrc/ps/update_rule.h"

namespace downpour::ps {
namespace {

constexpr int kSteps = 5;
constexpr std::int64_t kSizes[] = {1, 7, 15, 16, 17, 63, 64, 1000, 100003};

Dtype dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// The largest difference in units of the last place of max(|p|, |dp|).
template <typename T>
double difference_ulp(const torch::Tensor& ours, const torch::Tensor& theirs, const torch::Tensor& before) {
  const T *a = ours.data_ptr<T>(), *b = theirs.data_ptr<T>(), *p = before.data_ptr<T>();
  double worst = 0;
  for (std::int64_t i = 0; i < ours.numel(); ++i) {
    const T scale = std::max(std::abs(b[i]), std::abs(b[i] - p[i]));
    const double ulp =
        static_cast<double>(std::nextafter(scale, std::numeric_limits<T>::infinity())) - static_cast<double>(scale);
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) / ulp);
  }
  return worst;
}

double difference_ulp(const torch::Tensor& ours, const torch::Tensor& theirs, const torch::Tensor& before) {
  return ours.scalar_type() == torch::kFloat64 ? difference_ulp<double>(ours, theirs, before)
                                               : difference_ulp<float>(ours, theirs, before);
}

class UpdateRuleIdentity : public testing::TestWithParam<std::tuple<std::int64_t, torch::ScalarType>> {
 protected:
  void SetUp() override {
    torch::manual_seed(std::get<0>(GetParam()));
    // ATen without fused multiply-add (ATEN_CPU_CAPABILITY=default) is equalled by the targets without it.
    if (at::get_cpu_capability() == "DEFAULT") {
      hwy::SetSupportedTargetsForTest(HWY_SSE4 | HWY_SSSE3);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  }

  torch::Tensor random() const {
    return torch::randn({std::get<0>(GetParam())}, torch::TensorOptions().dtype(std::get<1>(GetParam())));
  }
};

void apply(RuleKind rule, const Hyper& hyper, std::int64_t step, torch::Tensor& values, const torch::Tensor& gradient,
           const std::vector<torch::Tensor>& state) {
  std::array<void*, kMaxStateBuffers> buffers{};
  for (std::size_t i = 0; i < state.size(); ++i) {
    buffers[i] = state[i].data_ptr();
  }
  apply_rule(rule, hyper, dtype_of(values), values.numel(), step, values.data_ptr(), gradient.data_ptr(), buffers);
}

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  return static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

std::vector<Hyper> sgd_settings() {
  std::vector<Hyper> settings;
  for (const double weight_decay : {0.0, 0.013}) {
    settings.push_back({.lr = 0.037, .weight_decay = weight_decay});
    settings.push_back({.lr = 0.037, .weight_decay = weight_decay, .momentum = 0.9});
    settings.push_back({.lr = 0.037, .weight_decay = weight_decay, .momentum = 0.9, .dampening = 0.3});
    settings.push_back({.lr = 0.037, .weight_decay = weight_decay, .momentum = 0.9, .nesterov = 1});
  }
  return settings;
}

// Five steps in a row, values and momentum bit for bit.
TEST_P(UpdateRuleIdentity, sgd_equals_torch_bit_for_bit) {
  for (const Hyper& hyper : sgd_settings()) {
    torch::Tensor theirs = random();
    torch::Tensor ours = theirs.clone(), buffer = torch::zeros_like(ours);
    torch::optim::SGD optimizer({theirs}, torch::optim::SGDOptions(hyper.lr)
                                              .momentum(hyper.momentum)
                                              .dampening(hyper.dampening)
                                              .weight_decay(hyper.weight_decay)
                                              .nesterov(hyper.nesterov != 0));
    for (int step = 1; step <= kSteps; ++step) {
      theirs.mutable_grad() = random();
      apply(RuleKind::kSgd, hyper, step, ours, theirs.grad(), {buffer});
      optimizer.step();
      ASSERT_TRUE(same_bits(ours, theirs)) << "step " << step << " momentum " << hyper.momentum << " dampening "
                                           << hyper.dampening << " decay " << hyper.weight_decay;
      if (hyper.momentum != 0) {
        auto& state = state_of<torch::optim::SGDParamState>(optimizer, theirs);
        ASSERT_TRUE(same_bits(buffer, state.momentum_buffer())) << "momentum buffer, step " << step;
      }
    }
  }
}

// A correctly rounded root. LibTorch's own comes from MKL, which on some processors is off by one unit.
torch::Tensor exact_root(const torch::Tensor& tensor) {
  torch::Tensor root = tensor.clone();
  const auto take_roots = [&](auto* begin) {
    std::transform(begin, begin + root.numel(), begin, [](auto x) { return std::sqrt(x); });
  };
  root.scalar_type() == torch::kFloat64 ? take_roots(root.data_ptr<double>()) : take_roots(root.data_ptr<float>());
  return root;
}

// What torch::optim would do with that root, by LibTorch's own operations.
torch::Tensor with_exact_root(RuleKind rule, const Hyper& hyper, int step, const torch::Tensor& before,
                              const torch::Tensor& gradient, const std::vector<torch::Tensor>& state) {
  torch::Tensor values = before.clone();
  if (rule == RuleKind::kAdagrad) {
    const torch::Tensor decayed = hyper.weight_decay != 0 ? gradient.add(before, hyper.weight_decay) : gradient;
    return values.addcdiv_(decayed, exact_root(state[0]).add_(hyper.eps),
                           -(hyper.lr / (1 + (step - 1) * hyper.lr_decay)));
  }
  if (rule == RuleKind::kAdamW && hyper.weight_decay != 0) {
    values.mul_(1 - hyper.lr * hyper.weight_decay);
  }
  const double correction1 = 1 - std::pow(hyper.beta1, step), correction2 = 1 - std::pow(hyper.beta2, step);
  const torch::Tensor denominator = (exact_root(state.back()) / std::sqrt(correction2)).add_(hyper.eps);
  return values.addcdiv_(state[0], denominator, -(hyper.lr / correction1));
}

// Each update from LibTorch's own state: the new state must agree bit for bit, and so must the values but for MKL's
// root, whose last place the roundings after it carry to 4 ulp at most.
template <typename State, typename States>
void compare_updates(torch::optim::Optimizer& optimizer, RuleKind rule, const Hyper& hyper, torch::Tensor& theirs,
                     const std::function<torch::Tensor()>& random, double initial, std::size_t buffers,
                     const States& states) {
  std::vector<torch::Tensor> state(buffers);
  for (auto& each : state) {
    each = torch::full_like(theirs, initial);
  }
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor before = theirs.clone();
    torch::Tensor ours = theirs.clone();
    theirs.mutable_grad() = random();
    apply(rule, hyper, step, ours, theirs.grad(), state);
    optimizer.step();
    EXPECT_LE(difference_ulp(ours, theirs, before), 4.0) << name(rule) << ", step " << step;
    const std::vector<torch::Tensor> expected = states(state_of<State>(optimizer, theirs));
    EXPECT_TRUE(same_bits(ours, with_exact_root(rule, hyper, step, before, theirs.grad(), expected)))
        << name(rule) << ", step " << step;
    for (std::size_t i = 0; i < buffers; ++i) {
      EXPECT_TRUE(same_bits(state[i], expected[i])) << state_name(rule, static_cast<int>(i)) << ", step " << step;
      state[i].copy_(expected[i]);
    }
  }
}

TEST_P(UpdateRuleIdentity, adagrad_equals_torch_but_for_its_root) {
  for (const Hyper& hyper :
       {Hyper{.lr = 0.05}, Hyper{.lr = 0.05, .weight_decay = 0.01, .lr_decay = 0.1, .eps = 1e-6}}) {
    for (const double initial : {0.0, 0.1}) {
      torch::Tensor theirs = random();
      torch::optim::Adagrad optimizer({theirs}, torch::optim::AdagradOptions(hyper.lr)
                                                    .lr_decay(hyper.lr_decay)
                                                    .weight_decay(hyper.weight_decay)
                                                    .initial_accumulator_value(initial)
                                                    .eps(hyper.eps));
      compare_updates<torch::optim::AdagradParamState>(
          optimizer, RuleKind::kAdagrad, hyper, theirs, [&] { return random(); }, initial, 1,
          [](auto& state) { return std::vector<torch::Tensor>{state.sum()}; });
    }
  }
}

template <typename State>
std::vector<torch::Tensor> moments(State& state, std::size_t buffers) {
  std::vector<torch::Tensor> tensors{state.exp_avg(), state.exp_avg_sq()};
  if (buffers == 3) {
    tensors.push_back(state.max_exp_avg_sq());
  }
  return tensors;
}

std::vector<Hyper> adam_settings() {
  std::vector<Hyper> settings;
  for (const std::uint8_t amsgrad : {0, 1}) {
    settings.push_back({.lr = 1e-3, .eps = 1e-8, .amsgrad = amsgrad});
    settings.push_back(
        {.lr = 0.02, .weight_decay = 0.013, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .amsgrad = amsgrad});
  }
  return settings;
}

TEST_P(UpdateRuleIdentity, adam_equals_torch_but_for_its_root) {
  for (const Hyper& hyper : adam_settings()) {
    torch::Tensor theirs = random();
    torch::optim::Adam optimizer({theirs}, torch::optim::AdamOptions(hyper.lr)
                                               .betas({hyper.beta1, hyper.beta2})
                                               .eps(hyper.eps)
                                               .weight_decay(hyper.weight_decay)
                                               .amsgrad(hyper.amsgrad != 0));
    const std::size_t buffers = hyper.amsgrad != 0 ? 3 : 2;
    compare_updates<torch::optim::AdamParamState>(
        optimizer, RuleKind::kAdam, hyper, theirs, [&] { return random(); }, 0, buffers,
        [&](auto& state) { return moments(state, buffers); });
  }
}

TEST_P(UpdateRuleIdentity, adamw_equals_torch_but_for_its_root) {
  for (const Hyper& hyper : adam_settings()) {
    torch::Tensor theirs = random();
    torch::optim::AdamW optimizer({theirs}, torch::optim::AdamWOptions(hyper.lr)
                                                .betas({hyper.beta1, hyper.beta2})
                                                .eps(hyper.eps)
                                                .weight_decay(hyper.weight_decay)
                                                .amsgrad(hyper.amsgrad != 0));
    const std::size_t buffers = hyper.amsgrad != 0 ? 3 : 2;
    compare_updates<torch::optim::AdamWParamState>(
        optimizer, RuleKind::kAdamW, hyper, theirs, [&] { return random(); }, 0, buffers,
        [&](auto& state) { return moments(state, buffers); });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, UpdateRuleIdentity,
                         testing::Combine(testing::ValuesIn(kSizes), testing::Values(torch::kFloat32, torch::kFloat64)),
                         [](const auto& suite) {
                           return concat(torch::toString(std::get<1>(suite.param)), "_", std::get<0>(suite.param));
                         });

}  // namespace
}  // namespace downpour::ps
