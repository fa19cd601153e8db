// How fast a shard's kernels take in gradients, on one core, beside memcpy of the same bytes.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/ps/update_rule.h"
#include "tests/bench/bench.h"

namespace {

using namespace downpour;
using namespace downpour::ps;

using namespace downpour::bench;

constexpr int kRounds = 15;
constexpr std::int64_t kBytesPerRound = std::int64_t{64} << 20;

// GB/s of a call that takes in `bytes`.
double rate(std::int64_t bytes, const std::function<void()>& call) {
  const auto repeats = std::max<std::int64_t>(1, kBytesPerRound / bytes);
  const double begin = now_s();
  for (std::int64_t i = 0; i < repeats; ++i) {
    call();
  }
  return static_cast<double>(bytes * repeats) / (now_s() - begin) / 1e9;
}

// Buffers of one shard: gradient, values and the state buffers, all touched, 64-byte aligned.
template <typename T>
struct Buffers {
  std::int64_t count;
  std::vector<std::vector<T>> memory;
  std::vector<T*> at;

  explicit Buffers(std::int64_t elements) : count(elements), memory(2 + kMaxStateBuffers) {
    for (auto& buffer : memory) {
      buffer.assign(static_cast<std::size_t>(elements) + 64 / sizeof(T), T{1e-3});
      void* begin = buffer.data();
      std::size_t space = buffer.size() * sizeof(T);
      at.push_back(static_cast<T*>(std::align(64, static_cast<std::size_t>(elements) * sizeof(T), begin, space)));
    }
  }
  std::int64_t bytes() const { return count * static_cast<std::int64_t>(sizeof(T)); }
};

// One kernel and a memcpy of as many bytes, in turn.
template <typename T>
void measure(const std::string& kernel, const char* place, Buffers<T>& buffers, const std::function<void()>& call) {
  const std::string name = concat("rules.", kernel, place, "_gbps");
  if (!is_wanted(name)) {
    return;
  }
  const auto copy = [&] {
    std::memcpy(buffers.at[4], buffers.at[0], static_cast<std::size_t>(buffers.bytes()));
    asm volatile("" : : "r"(buffers.at[4]) : "memory");
  };
  Rounds ours, theirs;
  for (int round = -1; round < kRounds; ++round) {
    const double one = rate(buffers.bytes(), call), other = rate(buffers.bytes(), copy);
    if (round >= 0) {
      ours.add(one);
      theirs.add(other);
    }
  }
  Line(name, ours, Better::kMore, "GB/s").beside("memcpy", theirs).print();
}

template <typename T>
void measure_rule(const char* kernel, const char* place, RuleKind rule, Hyper hyper, Dtype dtype, Buffers<T>& buffers) {
  hyper.lr = 1e-9;
  measure(kernel, place, buffers, [&, hyper] {
    apply_rule(rule, hyper, dtype, buffers.count, 10, buffers.at[1], buffers.at[0],
               {buffers.at[2], buffers.at[3], buffers.at[4]});
  });
}

template <typename T>
void measure_checks(const char* type, const char* place, Dtype dtype, Buffers<T>& buffers) {
  double sum = 0;
  measure(concat("check_", type), place, buffers,
          [&] { sum += check_gradient(dtype, buffers.count, buffers.at[0]).squared_norm; });
  measure(concat("copy_and_check_", type), place, buffers,
          [&] { sum += copy_and_check(dtype, buffers.count, buffers.at[0], buffers.at[1]).squared_norm; });
  asm volatile("" : : "r"(&sum) : "memory");
}

void measure_all(const char* place, std::int64_t bytes) {
  Buffers<float> single(bytes / 4);
  Buffers<double> twice(bytes / 8);
  const Hyper plain, momentum{.momentum = 0.9}, amsgrad{.amsgrad = 1};
  measure_rule("sgd_f32", place, RuleKind::kSgd, plain, Dtype::kFloat32, single);
  measure_rule("sgd_momentum_f32", place, RuleKind::kSgd, momentum, Dtype::kFloat32, single);
  measure_rule("adagrad_f32", place, RuleKind::kAdagrad, plain, Dtype::kFloat32, single);
  measure_rule("adam_f32", place, RuleKind::kAdam, plain, Dtype::kFloat32, single);
  measure_rule("adam_amsgrad_f32", place, RuleKind::kAdam, amsgrad, Dtype::kFloat32, single);
  measure_rule("adamw_f32", place, RuleKind::kAdamW, plain, Dtype::kFloat32, single);
  measure_rule("sgd_f64", place, RuleKind::kSgd, plain, Dtype::kFloat64, twice);
  measure_rule("adam_f64", place, RuleKind::kAdam, plain, Dtype::kFloat64, twice);
  measure_checks("f32", place, Dtype::kFloat32, single);
  measure_checks("f64", place, Dtype::kFloat64, twice);
}

}  // namespace

int main(int argc, char** argv) {
  take_filter(argc, argv);
  measure_all("", std::int64_t{128} << 10);       // all buffers of a rule stay in the second-level cache
  measure_all("_64mib", std::int64_t{64} << 20);  // none does
}
