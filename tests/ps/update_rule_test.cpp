#include "csrc/ps/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "csrc/base/random.h"
#include "tests/support/targets.h"

namespace downpour::ps {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kSizes[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1000};

template <typename T>
constexpr Dtype kDtype = sizeof(T) == 8 ? Dtype::kFloat64 : Dtype::kFloat32;

// The rules one element at a time, in the order of LibTorch's operations; a * b + c rounds once or twice.
template <typename T>
struct ScalarRule {
  RuleKind rule;
  Hyper hyper;
  std::int64_t step;
  bool fused;

  T multiply_add(T a, T b, T c) const {
    if (fused) {
      return std::fma(a, b, c);
    }
    volatile T product = a * b;
    return product + c;
  }

  void operator()(T& p, T g, T* m, T* v, T* most) const {
    g = g * static_cast<T>(hyper.gradient_scale);
    const T decay = static_cast<T>(hyper.weight_decay);
    if (decay != 0 && rule != RuleKind::kAdamW) {
      g = multiply_add(p, decay, g);
    }
    if (rule == RuleKind::kSgd) {
      sgd(p, g, m);
    } else if (rule == RuleKind::kAdagrad) {
      const T lr = static_cast<T>(-(hyper.lr / (1 + static_cast<double>(step - 1) * hyper.lr_decay)));
      *m = multiply_add(g, g, *m);
      p = p + (lr * g) / (std::sqrt(*m) + static_cast<T>(hyper.eps));
    } else {
      adam(p, g, *m, *v, most);
    }
  }

  void sgd(T& p, T g, T* m) const {
    const T momentum = static_cast<T>(hyper.momentum);
    if (momentum != 0) {
      volatile T kept = *m * momentum;
      *m = step == 1 ? g : multiply_add(g, static_cast<T>(1 - hyper.dampening), kept);
      g = hyper.nesterov != 0 ? multiply_add(*m, momentum, g) : *m;
    }
    p = multiply_add(g, static_cast<T>(-hyper.lr), p);
  }

  void adam(T& p, T g, T& m, T& v, T* most) const {
    if (rule == RuleKind::kAdamW && hyper.weight_decay != 0) {
      p = p * static_cast<T>(1 - hyper.lr * hyper.weight_decay);
    }
    volatile T kept = m * static_cast<T>(hyper.beta1);
    m = multiply_add(g, static_cast<T>(1 - hyper.beta1), kept);
    kept = v * static_cast<T>(hyper.beta2);
    volatile T scaled = static_cast<T>(1 - hyper.beta2) * g;
    v = multiply_add(scaled, g, kept);
    T second = v;
    if (hyper.amsgrad != 0) {
      second = *most = std::max(*most, v);
    }
    const T root = std::sqrt(second) / static_cast<T>(std::sqrt(1 - std::pow(hyper.beta2, static_cast<double>(step))));
    const T lr = static_cast<T>(-(hyper.lr / (1 - std::pow(hyper.beta1, static_cast<double>(step)))));
    p = p + (lr * m) / (root + static_cast<T>(hyper.eps));
  }
};

template <typename T>
std::vector<T> random_values(Random& random, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    value = static_cast<T>(static_cast<double>(random.below(2'000'001)) / 1e6 - 1);
  }
  return values;
}

// Values, gradient and state, at an odd place in memory.
template <typename T>
struct Operands {
  std::vector<T> p, g, m, v, most;

  Operands(Random& random, std::int64_t count)
      : p(random_values<T>(random, count + 1)),
        g(random_values<T>(random, count + 1)),
        m(p.size()),
        v(p.size()),
        most(p.size()) {}
  bool operator==(const Operands&) const = default;
};

template <typename T>
void compare_with_scalar(RuleKind rule, const Hyper& hyper, std::int64_t count, bool fused, const char* target) {
  Random random(static_cast<std::uint64_t>(count) + 1);
  Operands<T> ours(random, count);
  Operands<T> expected = ours;
  for (std::int64_t step = 1; step <= 3; ++step) {
    apply_rule(rule, hyper, kDtype<T>, count, step, ours.p.data() + 1, ours.g.data() + 1,
               {ours.m.data() + 1, ours.v.data() + 1, ours.most.data() + 1});
    const ScalarRule<T> scalar{rule, hyper, step, fused};
    for (std::size_t i = 1; i < expected.p.size(); ++i) {
      scalar(expected.p[i], expected.g[i], &expected.m[i], &expected.v[i], &expected.most[i]);
    }
    ASSERT_TRUE(ours == expected) << name(rule) << " " << name(kDtype<T>) << " count " << count << " step " << step
                                  << " on " << target;
  }
}

struct Case {
  RuleKind rule;
  Hyper hyper;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const double decay : {0.0, 0.01}) {
    all.push_back({RuleKind::kSgd, {.lr = 0.1, .weight_decay = decay}});
    all.push_back({RuleKind::kSgd, {.lr = 0.1, .weight_decay = decay, .momentum = 0.9, .dampening = 0.2}});
    all.push_back({RuleKind::kSgd, {.lr = 0.1, .weight_decay = decay, .momentum = 0.9, .nesterov = 1}});
    all.push_back({RuleKind::kSgd, {.lr = 0.1, .weight_decay = decay, .momentum = 0.9, .gradient_scale = 0.3}});
    all.push_back({RuleKind::kAdagrad, {.lr = 0.1, .weight_decay = decay, .gradient_scale = 0.3}});
    all.push_back({RuleKind::kAdagrad, {.lr = 0.1, .weight_decay = decay, .lr_decay = 0.5}});
    for (const RuleKind rule : {RuleKind::kAdam, RuleKind::kAdamW}) {
      for (const std::uint8_t amsgrad : {0, 1}) {
        all.push_back({rule, {.lr = 0.1, .weight_decay = decay, .eps = 1e-8, .amsgrad = amsgrad}});
      }
    }
  }
  return all;
}

TEST(UpdateRule, equals_the_scalar_rules_bit_for_bit_on_every_instruction_set) {
  for_each_target([](bool fused, const char* target) {
    for (const Case& each : cases()) {
      for (const std::int64_t count : kSizes) {
        compare_with_scalar<float>(each.rule, each.hyper, count, fused, target);
        compare_with_scalar<double>(each.rule, each.hyper, count, fused, target);
      }
    }
  });
}

TEST(UpdateRule, leaves_the_momentum_buffer_alone_without_momentum) {
  std::vector<float> p{1}, g{1}, m{42};
  apply_rule(RuleKind::kSgd, {.lr = 0.5}, Dtype::kFloat32, 1, 1, p.data(), g.data(), {m.data()});
  EXPECT_EQ(p[0], 0.5f);
  EXPECT_EQ(m[0], 42);
  apply_rule(RuleKind::kSgd, {.lr = 0.5}, Dtype::kFloat32, 1, 2, p.data(), g.data(), {});
  EXPECT_EQ(p[0], 0);
}

TEST(UpdateRule, first_gradient_overwrites_the_momentum_buffer) {
  std::vector<float> p{1}, g{1}, m{42};
  apply_rule(RuleKind::kSgd, {.lr = 1, .momentum = 0.5, .dampening = 0.5}, Dtype::kFloat32, 1, 1, p.data(), g.data(),
             {m.data()});
  EXPECT_EQ(m[0], 1);
  EXPECT_EQ(p[0], 0);
}

// Shared buffers: their group subtracts, whatever the schema's rule is, and touches no state.
TEST(UpdateRule, a_plain_group_subtracts_under_every_rule) {
  for (const RuleKind rule : {RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kAdam, RuleKind::kAdamW}) {
    std::vector<float> p{5}, g{2}, m{42}, v{43}, most{44};
    apply_rule(rule, {.lr = 1, .plain = 1}, Dtype::kFloat32, 1, 1, p.data(), g.data(),
               {m.data(), v.data(), most.data()});
    EXPECT_EQ(p[0], 3);
    EXPECT_THAT((std::vector<float>{m[0], v[0], most[0]}), testing::ElementsAre(42, 43, 44));
  }
}

// Ledger arithmetic: integers below 2^24 are exact.
TEST(UpdateRule, counts_exactly_with_a_learning_rate_of_minus_one) {
  std::vector<float> p(37, 0), g(37, 1);
  for (int step = 1; step <= 1000; ++step) {
    apply_rule(RuleKind::kSgd, {.lr = -1}, Dtype::kFloat32, 37, step, p.data(), g.data(), {});
  }
  EXPECT_THAT(p, testing::Each(1000.0f));
}

TEST(UpdateRule, refuses_what_it_cannot_apply_before_any_effect) {
  std::vector<float> p{1}, g{1};
  const auto apply = [&](Hyper hyper, std::int64_t count, std::int64_t step, RuleKind rule = RuleKind::kSgd) {
    apply_rule(rule, hyper, Dtype::kFloat32, count, step, p.data(), g.data(), {});
  };
  EXPECT_THAT([&] { apply({}, -1, 1); }, ThrowsMessage<Error>(HasSubstr("-1 elements")));
  EXPECT_THAT([&] { apply({}, 1, 0); }, ThrowsMessage<Error>(HasSubstr("step 0")));
  EXPECT_THAT([&] { apply({.momentum = 0.9}, 1, 1); }, ThrowsMessage<Error>(HasSubstr("momentum_buffer")));
  EXPECT_THAT([&] { apply({}, 1, 1, RuleKind::kAdagrad); }, ThrowsMessage<Error>(HasSubstr("'sum'")));
  EXPECT_THAT([&] { apply({}, 1, 1, static_cast<RuleKind>(9)); }, ThrowsMessage<Error>(HasSubstr("update rule 9")));
  EXPECT_EQ(p[0], 1);
}

TEST(UpdateRule, check_hyper_names_the_number_that_cannot_be_used) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT([&] { check_hyper(RuleKind::kSgd, 0, {.lr = nan}); }, ThrowsMessage<Error>(HasSubstr("lr is nan")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kSgd, 0, {.dampening = HUGE_VAL}); },
              ThrowsMessage<Error>(HasSubstr("dampening is inf")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kSgd, 0, {.momentum = 0.9}); },
              ThrowsMessage<Error>(HasSubstr("needs 1 state buffers")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kAdam, 2, {.amsgrad = 1}); },
              ThrowsMessage<Error>(HasSubstr("the schema has 2")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kAdam, 2, {.beta2 = 1}); }, ThrowsMessage<Error>(HasSubstr("0 <= beta < 1")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kSgd, 0, {.gradient_scale = nan}); },
              ThrowsMessage<Error>(HasSubstr("gradient_scale is nan")));
  EXPECT_THAT([&] { check_hyper(RuleKind::kAdam, 2, {.momentum = 0.9, .plain = 1}); },
              ThrowsMessage<Error>(HasSubstr("plain group: momentum 0.9")));
  EXPECT_NO_THROW(check_hyper(RuleKind::kSgd, 1, {.momentum = 0.9}));
  EXPECT_NO_THROW(check_hyper(RuleKind::kAdamW, 3, {.amsgrad = 1}));
}

TEST(UpdateRule, keeps_the_state_buffers_of_torch_optim) {
  const auto buffers = [](RuleKind rule, std::uint8_t more) { return state_buffers({{}, 1, rule, more}); };
  EXPECT_EQ(buffers(RuleKind::kSgd, 0), 0);
  EXPECT_EQ(buffers(RuleKind::kSgd, 1), 1);
  EXPECT_EQ(buffers(RuleKind::kAdagrad, 0), 1);
  EXPECT_EQ(buffers(RuleKind::kAdam, 0), 2);
  EXPECT_EQ(buffers(RuleKind::kAdamW, 1), 3);
  EXPECT_EQ(state_name(RuleKind::kSgd, 0), "momentum_buffer");
  EXPECT_EQ(state_name(RuleKind::kAdagrad, 0), "sum");
  EXPECT_EQ(state_name(RuleKind::kAdam, 0), "exp_avg");
  EXPECT_EQ(state_name(RuleKind::kAdam, 1), "exp_avg_sq");
  EXPECT_EQ(state_name(RuleKind::kAdamW, 2), "max_exp_avg_sq");
  EXPECT_THROW(state_name(RuleKind::kSgd, 1), Error);
  EXPECT_THROW(buffers(static_cast<RuleKind>(0), 0), Error);
}

}  // namespace
}  // namespace downpour::ps
