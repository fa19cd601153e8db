#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "csrc/ps/update_rule.h"
#include "optimizers/downpour_sgd.h"
#include "tests/optimizers/models.h"

// A world of one equals torch::optim.
namespace downpour {
namespace {

using torch::Tensor;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

std::vector<SGDOptions> sgd_variants() {
  return {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01), SGDOptions(0.05).momentum(0.9),
          SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.001),
          SGDOptions(0.05).momentum(0.8).nesterov(true)};
}

std::vector<torch::optim::OptimizerParamGroup> two_groups(testing::Mlp& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net.first->parameters(), std::make_unique<SGDOptions>(SGDOptions(0.2).momentum(0.5)));
  groups.emplace_back(net.second->parameters(), std::make_unique<SGDOptions>(SGDOptions(0.02).weight_decay(0.1)));
  return groups;
}

struct NamedLoop {
  const char* name;
  testing::Loop loop;
};
std::ostream& operator<<(std::ostream& out, const NamedLoop& named) { return out << named.name; }

class SgdLoops : public ::testing::TestWithParam<NamedLoop> {};

TEST_P(SgdLoops, EqualTorchBitForBit) {
  for (const SGDOptions& options : sgd_variants()) {
    const auto theirs = testing::make_mlp();
    const auto ours = testing::make_mlp();
    torch::optim::SGD sgd(theirs->parameters(), options);
    DownpourSGD downpour(*ours, options);
    testing::train(*theirs, sgd, GetParam().loop);
    testing::train(*ours, downpour, GetParam().loop);
    EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters()))
        << options.momentum() << options.nesterov();
    EXPECT_EQ(downpour.stats().step, GetParam().loop.steps);
  }
}

TEST_P(SgdLoops, WithGroupsEqualTorchBitForBit) {
  const auto theirs = testing::make_mlp();
  const auto ours = testing::make_mlp();
  torch::optim::SGD sgd(two_groups(*theirs), SGDOptions(0.1));
  DownpourSGD downpour(two_groups(*ours), SGDOptions(0.1));
  testing::train(*theirs, sgd, GetParam().loop);
  testing::train(*ours, downpour, GetParam().loop);
  EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters()));
}

INSTANTIATE_TEST_SUITE_P(
    All, SgdLoops,
    ::testing::Values(NamedLoop{"plain", {}}, NamedLoop{"accumulation", {.steps = 10, .accumulate = 3}},
                      NamedLoop{"clipping", {.clip_norm = 0.1}}, NamedLoop{"step_lr", {.decay_every = 4}},
                      NamedLoop{"zero_to_zero", {.set_to_none = false}},
                      NamedLoop{"all", {.accumulate = 2, .clip_norm = 0.2, .set_to_none = false, .decay_every = 5}}),
    [](const auto& tested) { return tested.param.name; });

template <typename Optimizer>
void train_zoo(const testing::Zoo& zoo, Optimizer& optimizer, std::int64_t steps) {
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    zoo.loss(step).backward();
    optimizer.step();
  }
}

TEST(Embedded, SgdEqualsTorchForParametersOfEveryKind) {
  for (const SGDOptions& options : sgd_variants()) {
    testing::Zoo theirs, ours;
    torch::optim::SGD sgd(theirs.parameters, options);
    DownpourSGD downpour(ours.parameters, options);
    train_zoo(theirs, sgd, 8);
    train_zoo(ours, downpour, 8);
    for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(theirs.parameters[i], ours.parameters[i])) << ours.names[i];
      EXPECT_EQ(theirs.parameters[i].strides(), ours.parameters[i].strides()) << ours.names[i];
    }
  }
}

// Within 4 ulp of max(|p|, |dp|) per update; see csrc/ps/update_rule.h for where the bound comes from.
void expect_close(const Tensor& theirs, const Tensor& ours, const Tensor& before, std::int64_t updates,
                  const std::string& name) {
  const double ulp = theirs.scalar_type() == torch::kDouble ? 0x1p-52 : 0x1p-23;
  const Tensor scale = torch::max(theirs.abs(), (theirs - before).abs()).clamp_min(1e-30).to(torch::kDouble);
  const Tensor distance = (theirs - ours).abs().to(torch::kDouble) / scale;
  const double worst = theirs.numel() > 0 ? distance.max().item<double>() : 0;
  EXPECT_LE(worst, 4 * ulp * static_cast<double>(updates)) << name;
}

template <typename Torch, typename Options>
void expect_rule_close(const Options& options) {
  testing::Zoo theirs, ours;
  Torch torchs(theirs.parameters, options);
  DownpourSGD downpour(ours.parameters, options);
  // The same gradients for both, so that only the updates differ.
  for (std::int64_t step = 0; step < 6; ++step) {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> before;
    for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
      ours.parameters[i].copy_(theirs.parameters[i]);
      before.push_back(theirs.parameters[i].detach().clone());
    }
    torchs.zero_grad();
    {
      const at::AutoGradMode with_grad(true);
      theirs.loss(step).backward();
    }
    for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
      ours.parameters[i].mutable_grad() = theirs.parameters[i].grad();
    }
    torchs.step();
    downpour.step();
    for (std::size_t i = 0; i < ours.parameters.size(); ++i) {
      expect_close(theirs.parameters[i].detach(), ours.parameters[i].detach(), before[i], step + 1, ours.names[i]);
    }
  }
}

TEST(Embedded, AdagradEqualsTorchWithinTheStatedBound) {
  expect_rule_close<torch::optim::Adagrad>(AdagradOptions(0.1));
  expect_rule_close<torch::optim::Adagrad>(
      AdagradOptions(0.1).weight_decay(0.01).lr_decay(0.1).initial_accumulator_value(0.5));
}

TEST(Embedded, AdamEqualsTorchWithinTheStatedBound) {
  expect_rule_close<torch::optim::Adam>(AdamOptions(0.01));
  expect_rule_close<torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.01).amsgrad(true).betas({0.8, 0.95}));
}

TEST(Embedded, AdamWEqualsTorchWithinTheStatedBound) {
  expect_rule_close<torch::optim::AdamW>(AdamWOptions(0.01));
  expect_rule_close<torch::optim::AdamW>(AdamWOptions(0.01).weight_decay(0.1).amsgrad(true));
}

TEST(Embedded, TakesAClosure) {
  const auto theirs = testing::make_mlp();
  const auto ours = testing::make_mlp();
  torch::optim::SGD sgd(theirs->parameters(), SGDOptions(0.1));
  DownpourSGD downpour(*ours, SGDOptions(0.1));
  const auto step = [](testing::Mlp& net, torch::optim::Optimizer& optimizer) {
    const torch::NoGradGuard no_grad;  // step() switches it on for the closure
    return optimizer.step([&] {
      optimizer.zero_grad();
      const Tensor loss = testing::loss_of(net, testing::make_batch(0));
      loss.backward();
      return loss;
    });
  };
  EXPECT_TRUE(torch::equal(step(*theirs, sgd), step(*ours, downpour)));
  EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters()));
}

TEST(Embedded, LeavesFrozenParametersAlone) {
  const auto theirs = testing::make_mlp();
  const auto ours = testing::make_mlp();
  theirs->first->weight.requires_grad_(false);
  ours->first->weight.requires_grad_(false);
  torch::optim::SGD sgd(theirs->parameters(), SGDOptions(0.1).momentum(0.9));
  DownpourSGD downpour(*ours, SGDOptions(0.1).momentum(0.9));
  EXPECT_EQ(downpour.parameters().size(), 3);
  testing::train(*theirs, sgd, {});
  testing::train(*ours, downpour, {});
  EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters()));
}

// ---- save and load ----------------------------------------------------------------------------------------------------

template <typename From, typename To>
void move_state(const From& from, To& to) {
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  from.save(out);
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  to.load(in);
}

void copy_parameters(testing::Mlp& from, testing::Mlp& to) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : from.named_parameters()) {
    to.named_parameters()[item.key()].copy_(item.value());
  }
}

// Ten steps, everything carried over to a new model and optimizer (of type To), ten more: the same as twenty.
template <typename First, typename Second, typename Options>
void expect_resumes(const Options& options) {
  const auto whole = testing::make_mlp();
  DownpourSGD uninterrupted(*whole, options);
  testing::train(*whole, uninterrupted, {.steps = 20, .decay_every = 0});

  const auto net = testing::make_mlp();
  const auto resumed = testing::make_mlp(99);
  First first(net->parameters(), options);
  testing::train(*net, first, {.steps = 10});
  copy_parameters(*net, *resumed);
  Options other = options;
  other.lr(123);  // comes from the archive
  Second second(resumed->parameters(), other);
  move_state(first, second);
  testing::train(*resumed, second, {.steps = 10, .first_batch = 10});
  if constexpr (std::is_same_v<Options, SGDOptions> ||
                (std::is_same_v<First, DownpourSGD> && std::is_same_v<Second, DownpourSGD>)) {
    EXPECT_TRUE(testing::bitwise_equal(whole->parameters(), resumed->parameters()));
  } else {
    for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(whole->parameters()[i], resumed->parameters()[i], 1e-4, 1e-6));
    }
  }
}

TEST(EmbeddedState, IsTorchsOwnInBothDirections) {
  const auto sgd = SGDOptions(0.1).momentum(0.9);
  expect_resumes<DownpourSGD, DownpourSGD>(sgd);
  expect_resumes<torch::optim::SGD, DownpourSGD>(sgd);
  expect_resumes<DownpourSGD, torch::optim::SGD>(sgd);
  const auto adagrad = AdagradOptions(0.05).lr_decay(0.01);
  expect_resumes<DownpourSGD, DownpourSGD>(adagrad);
  expect_resumes<torch::optim::Adagrad, DownpourSGD>(adagrad);
  expect_resumes<DownpourSGD, torch::optim::Adagrad>(adagrad);
  const auto adam = AdamOptions(0.01).amsgrad(true);
  expect_resumes<DownpourSGD, DownpourSGD>(adam);
  expect_resumes<torch::optim::Adam, DownpourSGD>(adam);
  expect_resumes<DownpourSGD, torch::optim::Adam>(adam);
  const auto adamw = AdamWOptions(0.01);
  expect_resumes<DownpourSGD, DownpourSGD>(adamw);
  expect_resumes<torch::optim::AdamW, DownpourSGD>(adamw);
  expect_resumes<DownpourSGD, torch::optim::AdamW>(adamw);
}

TEST(EmbeddedState, ResumesInTheMiddleOfAPush) {
  const auto options = DownpourOptions().n_push(3).n_fetch(2).local_lr(0.01);
  const auto whole = testing::make_mlp();
  DownpourSGD uninterrupted(*whole, AdamOptions(0.01), options);
  testing::train(*whole, uninterrupted, {.steps = 20});

  const auto net = testing::make_mlp();
  DownpourSGD first(*net, AdamOptions(0.01), options);
  testing::train(*net, first, {.steps = 10});
  const auto resumed = testing::make_mlp(99);
  copy_parameters(*net, *resumed);
  DownpourSGD second(*resumed, AdamOptions(0.01), options);
  move_state(first, second);
  testing::train(*resumed, second, {.steps = 10, .first_batch = 10});
  EXPECT_TRUE(testing::bitwise_equal(whole->parameters(), resumed->parameters()));
}

// ---- Downpour's own knobs -----------------------------------------------------------------------------------------------

// One parameter, gradient 1 at every step, SGD with learning rate 1: what the values are after each step.
std::vector<double> walk(const DownpourOptions& options, int steps) {
  Tensor p = torch::zeros({1}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1), options);
  std::vector<double> values;
  for (int step = 0; step < steps; ++step) {
    downpour.zero_grad();
    p.sum().backward();
    downpour.step();
    values.push_back(p.item<double>());
  }
  downpour.finish();
  values.push_back(p.item<double>());
  return values;
}

TEST(EmbeddedKnobs, PushSumsSeveralSteps) {
  EXPECT_EQ(walk(DownpourOptions().n_push(2), 5), (std::vector<double>{0, -2, -2, -4, -4, -5}));
}

TEST(EmbeddedKnobs, ParametersWaitForThePull) {
  EXPECT_EQ(walk(DownpourOptions().n_fetch(3), 7), (std::vector<double>{0, 0, -3, -3, -3, -6, -6, -7}));
}

TEST(EmbeddedKnobs, LocalStepsBetweenPulls) {
  EXPECT_EQ(walk(DownpourOptions().n_fetch(3).local_lr(0.5), 4), (std::vector<double>{-0.5, -1, -3, -3.5, -4}));
  EXPECT_EQ(walk(DownpourOptions().n_push(2).n_fetch(2).local_lr(0.5), 4),
            (std::vector<double>{-0.5, -2, -2.5, -4, -4}));
}

TEST(EmbeddedKnobs, MaxGradNormClipsAsTorchDoes) {
  for (const bool overlap : {false, true}) {
    const auto theirs = testing::make_mlp();
    const auto ours = testing::make_mlp();
    torch::optim::SGD sgd(theirs->parameters(), SGDOptions(0.1));
    DownpourSGD downpour(*ours, SGDOptions(0.1), DownpourOptions().max_grad_norm(0.1).overlap(overlap));
    testing::train(*theirs, sgd, {.steps = 5, .clip_norm = 0.1});
    testing::train(*ours, downpour, {.steps = 5});
    EXPECT_GT(downpour.stats().gradient_norm, 0.1);
    for (std::size_t i = 0; i < ours->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(theirs->parameters()[i], ours->parameters()[i], 1e-5, 1e-7));
    }
  }
}

}  // namespace
}  // namespace downpour
