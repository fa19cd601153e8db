#include "csrc/ps/update_rule.h"

#include <cmath>
#include <utility>

// foreach_target includes this file once per instruction set; everything between the HWY_*_NAMESPACE marks exists once
// for each of them, the rest once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "csrc/ps/update_rule.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef DOWNPOUR_PS_UPDATE_RULE_ONCE
#define DOWNPOUR_PS_UPDATE_RULE_ONCE

namespace downpour::ps {
namespace {

// One parameter's update as the kernels see it. Scalars are computed in double and rounded to the element type once,
// where ATen rounds them.
struct Update {
  const Hyper& hyper;
  std::int64_t count;
  std::int64_t step;
  void* values;
  const void* gradient;
  std::array<void*, kMaxStateBuffers> state;
};

}  // namespace
}  // namespace downpour::ps

#endif  // DOWNPOUR_PS_UPDATE_RULE_ONCE

HWY_BEFORE_NAMESPACE();
namespace downpour::ps {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// The tail takes single lanes through the same operations, so that an element's result does not depend on its position;
// ATen's tails are fused (or not) like its vector loops, too. MulAdd is fused on every target that has the instruction.
template <typename T, class Kernel>
HWY_INLINE void for_each_vector(std::int64_t count, const Kernel& kernel) {
  const hn::ScalableTag<T> vector;
  const hn::CappedTag<T, 1> single;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(vector));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    kernel(vector, i);
  }
  for (; i < count; ++i) {
    kernel(single, i);
  }
}

// What the kernels have in common: typed pointers, and gradient_scale * g + weight_decay * p. A scale of 1 changes
// no bit.
template <typename T>
struct Operands {
  T* p;
  const T* g;
  std::array<T*, kMaxStateBuffers> state;
  T scale, weight_decay;

  explicit Operands(const Update& update)
      : p(static_cast<T*>(update.values)),
        g(static_cast<const T*>(update.gradient)),
        state{static_cast<T*>(update.state[0]), static_cast<T*>(update.state[1]), static_cast<T*>(update.state[2])},
        scale(static_cast<T>(update.hyper.gradient_scale)),
        weight_decay(static_cast<T>(update.hyper.weight_decay)) {}

  template <class D>
  HWY_INLINE hn::Vec<D> decayed_gradient(D d, std::int64_t i) const {
    const auto gradient = hn::Mul(hn::LoadU(d, g + i), hn::Set(d, scale));
    return weight_decay == T{0} ? gradient : hn::MulAdd(hn::LoadU(d, p + i), hn::Set(d, weight_decay), gradient);
  }
};

template <typename T>
struct Sgd : Operands<T> {
  T negative_lr, momentum, undamped;
  bool first, nesterov;

  explicit Sgd(const Update& update)
      : Operands<T>(update),
        negative_lr(static_cast<T>(-update.hyper.lr)),
        momentum(static_cast<T>(update.hyper.momentum)),
        undamped(static_cast<T>(1 - update.hyper.dampening)),
        first(update.step == 1),
        nesterov(update.hyper.nesterov != 0) {}

  template <class D>
  HWY_INLINE void operator()(D d, std::int64_t i) const {
    auto direction = this->decayed_gradient(d, i);
    if (momentum != T{0}) {
      direction = with_momentum(d, i, direction);
    }
    hn::StoreU(hn::MulAdd(direction, hn::Set(d, negative_lr), hn::LoadU(d, this->p + i)), d, this->p + i);
  }

  template <class D>
  HWY_INLINE hn::Vec<D> with_momentum(D d, std::int64_t i, hn::Vec<D> direction) const {
    T* const at = this->state[0] + i;
    const auto factor = hn::Set(d, momentum);
    const auto buffer =
        first ? direction : hn::MulAdd(direction, hn::Set(d, undamped), hn::Mul(hn::LoadU(d, at), factor));
    hn::StoreU(buffer, d, at);
    return nesterov ? hn::MulAdd(buffer, factor, direction) : buffer;
  }
};

template <typename T>
struct Adagrad : Operands<T> {
  T negative_lr, eps;

  explicit Adagrad(const Update& update)
      : Operands<T>(update),
        negative_lr(
            static_cast<T>(-(update.hyper.lr / (1 + static_cast<double>(update.step - 1) * update.hyper.lr_decay)))),
        eps(static_cast<T>(update.hyper.eps)) {}

  template <class D>
  HWY_INLINE void operator()(D d, std::int64_t i) const {
    T* const at = this->state[0] + i;
    const auto gradient = this->decayed_gradient(d, i);
    const auto sum = hn::MulAdd(gradient, gradient, hn::LoadU(d, at));
    hn::StoreU(sum, d, at);
    const auto deviation = hn::Add(hn::Sqrt(sum), hn::Set(d, eps));
    const auto change = hn::Div(hn::Mul(hn::Set(d, negative_lr), gradient), deviation);
    hn::StoreU(hn::Add(hn::LoadU(d, this->p + i), change), d, this->p + i);
  }
};

// Adam; AdamW is the same with the weights shrunk first and no decay in the gradient.
template <typename T>
struct Adam : Operands<T> {
  T shrink, beta1, beta2, rest1, rest2, root_correction2, eps, negative_lr;
  bool decoupled, amsgrad;

  Adam(const Update& update, bool decoupled_decay)
      : Operands<T>(update),
        shrink(static_cast<T>(1 - update.hyper.lr * update.hyper.weight_decay)),
        beta1(static_cast<T>(update.hyper.beta1)),
        beta2(static_cast<T>(update.hyper.beta2)),
        rest1(static_cast<T>(1 - update.hyper.beta1)),
        rest2(static_cast<T>(1 - update.hyper.beta2)),
        root_correction2(static_cast<T>(std::sqrt(correction(update.hyper.beta2, update.step)))),
        eps(static_cast<T>(update.hyper.eps)),
        negative_lr(static_cast<T>(-(update.hyper.lr / correction(update.hyper.beta1, update.step)))),
        decoupled(decoupled_decay && update.hyper.weight_decay != 0),
        amsgrad(update.hyper.amsgrad != 0) {
    if (decoupled_decay) {
      this->weight_decay = T{0};
    }
  }

  static double correction(double beta, std::int64_t step) { return 1 - std::pow(beta, static_cast<double>(step)); }

  template <class D>
  HWY_INLINE void operator()(D d, std::int64_t i) const {
    const auto gradient = this->decayed_gradient(d, i);
    const auto first = first_moment(d, i, gradient);
    const auto second = second_moment(d, i, gradient);
    const auto root = hn::Div(hn::Sqrt(second), hn::Set(d, root_correction2));
    const auto change = hn::Div(hn::Mul(hn::Set(d, negative_lr), first), hn::Add(root, hn::Set(d, eps)));
    auto value = hn::LoadU(d, this->p + i);
    value = decoupled ? hn::Mul(value, hn::Set(d, shrink)) : value;
    hn::StoreU(hn::Add(value, change), d, this->p + i);
  }

  template <class D>
  HWY_INLINE hn::Vec<D> first_moment(D d, std::int64_t i, hn::Vec<D> gradient) const {
    T* const at = this->state[0] + i;
    const auto moment = hn::MulAdd(gradient, hn::Set(d, rest1), hn::Mul(hn::LoadU(d, at), hn::Set(d, beta1)));
    hn::StoreU(moment, d, at);
    return moment;
  }

  // With amsgrad: its maximum so far.
  template <class D>
  HWY_INLINE hn::Vec<D> second_moment(D d, std::int64_t i, hn::Vec<D> gradient) const {
    T* const at = this->state[1] + i;
    const auto scaled = hn::Mul(hn::Set(d, rest2), gradient);
    const auto moment = hn::MulAdd(scaled, gradient, hn::Mul(hn::LoadU(d, at), hn::Set(d, beta2)));
    hn::StoreU(moment, d, at);
    return amsgrad ? maximum(d, i, moment) : moment;
  }

  template <class D>
  HWY_INLINE hn::Vec<D> maximum(D d, std::int64_t i, hn::Vec<D> moment) const {
    T* const at = this->state[2] + i;
    const auto most = hn::Max(hn::LoadU(d, at), moment);
    hn::StoreU(most, d, at);
    return most;
  }
};

template <typename T>
HWY_INLINE void update_elements(RuleKind rule, const Update& update) {
  if (rule == RuleKind::kSgd) {
    const Sgd<T> kernel(update);
    for_each_vector<T>(update.count, kernel);
  } else if (rule == RuleKind::kAdagrad) {
    const Adagrad<T> kernel(update);
    for_each_vector<T>(update.count, kernel);
  } else {
    const Adam<T> kernel(update, rule == RuleKind::kAdamW);
    for_each_vector<T>(update.count, kernel);
  }
}

void update_float32(RuleKind rule, const Update& update) { update_elements<float>(rule, update); }
void update_float64(RuleKind rule, const Update& update) { update_elements<double>(rule, update); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace downpour::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace downpour::ps {
namespace {

HWY_EXPORT(update_float32);
HWY_EXPORT(update_float64);

RuleKind rule_of(RuleKind rule, const Hyper& hyper) { return hyper.plain != 0 ? RuleKind::kSgd : rule; }

// How many of its state buffers an update touches: SGD leaves its buffer alone while the momentum is zero.
int buffers_used(RuleKind rule, const Hyper& hyper) {
  switch (rule) {
    case RuleKind::kSgd: return hyper.momentum != 0 ? 1 : 0;
    case RuleKind::kAdagrad: return 1;
    case RuleKind::kAdam:
    case RuleKind::kAdamW: return hyper.amsgrad != 0 ? 3 : 2;
  }
  throw Error(concat("update rule ", int{static_cast<std::uint8_t>(rule)}, " is none of SGD, Adagrad, Adam, AdamW"));
}

void check(RuleKind rule, const Update& update) {
  DOWNPOUR_CHECK(update.count >= 0, "update rule: ", update.count, " elements; a count is at least 0");
  DOWNPOUR_CHECK(update.step >= 1, "update rule: step ", update.step, "; the first step is 1");
  const int used = buffers_used(rule, update.hyper);
  for (int buffer = 0; buffer < used; ++buffer) {
    DOWNPOUR_CHECK(update.state[static_cast<std::size_t>(buffer)] != nullptr || update.count == 0, name(rule),
                   " needs its state buffer '", state_name(rule, buffer), "' with these settings, found none; set ",
                   "Schema::momentum_buffers");
  }
}

}  // namespace

void check_hyper(RuleKind rule, int buffers, const Hyper& hyper) {
  const std::pair<std::string_view, double> numbers[] = {{"lr", hyper.lr},
                                                         {"weight_decay", hyper.weight_decay},
                                                         {"momentum", hyper.momentum},
                                                         {"eps", hyper.eps},
                                                         {"dampening", hyper.dampening},
                                                         {"lr_decay", hyper.lr_decay},
                                                         {"beta1", hyper.beta1},
                                                         {"beta2", hyper.beta2},
                                                         {"gradient_scale", hyper.gradient_scale}};
  rule = rule_of(rule, hyper);
  for (const auto& [field, value] : numbers) {
    DOWNPOUR_CHECK(std::isfinite(value), name(rule), ": ", field, " is ", value, "; expected a finite number");
  }
  if (rule == RuleKind::kAdam || rule == RuleKind::kAdamW) {
    DOWNPOUR_CHECK(hyper.beta1 >= 0 && hyper.beta1 < 1 && hyper.beta2 >= 0 && hyper.beta2 < 1, name(rule), ": betas ",
                   hyper.beta1, " and ", hyper.beta2, "; expected 0 <= beta < 1");
  }
  // The state buffers are those of the schema's rule: a plain group must not take one for its momentum.
  DOWNPOUR_CHECK(hyper.plain == 0 || hyper.momentum == 0, "plain group: momentum ", hyper.momentum, "; it has none");
  const int used = buffers_used(rule, hyper);
  DOWNPOUR_CHECK(used <= buffers, name(rule), ": needs ", used, " state buffers with these settings (momentum ",
                 hyper.momentum, ", amsgrad ", int{hyper.amsgrad}, "), the schema has ", buffers,
                 "; set Schema::momentum_buffers before training starts");
}

int state_buffers(const Schema& schema) {
  switch (schema.rule) {
    case RuleKind::kSgd: return schema.momentum_buffers;
    case RuleKind::kAdagrad: return 1;
    case RuleKind::kAdam:
    case RuleKind::kAdamW: return 2 + schema.momentum_buffers;
  }
  throw Error(
      concat("update rule ", int{static_cast<std::uint8_t>(schema.rule)}, " is none of SGD, Adagrad, Adam, AdamW"));
}

std::string_view state_name(RuleKind rule, int buffer) {
  constexpr std::array<std::string_view, kMaxStateBuffers> kMoments{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  const int most = rule == RuleKind::kSgd || rule == RuleKind::kAdagrad ? 1 : kMaxStateBuffers;
  DOWNPOUR_CHECK(buffer >= 0 && buffer < most, name(rule), " has no state buffer ", buffer, "; it has ", most,
                 " at most");
  if (rule == RuleKind::kSgd) {
    return "momentum_buffer";
  }
  return rule == RuleKind::kAdagrad ? "sum" : kMoments[static_cast<std::size_t>(buffer)];
}

void apply_rule(RuleKind rule, const Hyper& hyper, Dtype dtype, std::int64_t count, std::int64_t step, void* values,
                const void* gradient, std::array<void*, kMaxStateBuffers> state) {
  const Update update{hyper, count, step, values, gradient, state};
  rule = rule_of(rule, hyper);
  check(rule, update);
  if (dtype == Dtype::kFloat64) {
    HWY_DYNAMIC_DISPATCH(update_float64)(rule, update);
  } else {
    HWY_DYNAMIC_DISPATCH(update_float32)(rule, update);
  }
}

}  // namespace downpour::ps
#endif  // HWY_ONCE
