// How fast a shard's kernels take in gradients, on one core: best of several rounds, one JSON object a line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/ps/update_rule.h"

namespace {

using namespace downpour;
using namespace downpour::ps;

constexpr int kRounds = 15;

// Best rate in GB/s of a call that takes in `bytes`; each round repeats it for about 256 MiB.
double best_rate(std::int64_t bytes, const std::function<void()>& call) {
  const auto repeats = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / bytes);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < repeats; ++i) {
      call();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(bytes * repeats) / taken.count() / 1e9);
  }
  return best;
}

void print(const char* name, const char* place, double value, double memcpy_rate) {
  std::printf(
      "{\"name\":\"rules.%s%s_gbps\",\"value\":%.2f,\"unit\":\"GB/s\",\"peer\":\"memcpy\",\"peer_value\":%.2f,"
      "\"ratio\":%.3f}\n",
      name, place, value, memcpy_rate, value / memcpy_rate);
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

template <typename T>
void measure_rule(const char* name, const char* place, RuleKind rule, Hyper hyper, Dtype dtype, Buffers<T>& buffers,
                  double memcpy_rate) {
  hyper.lr = 1e-9;
  print(name, place,
        best_rate(buffers.bytes(),
                  [&] {
                    apply_rule(rule, hyper, dtype, buffers.count, 10, buffers.at[1], buffers.at[0],
                               {buffers.at[2], buffers.at[3], buffers.at[4]});
                  }),
        memcpy_rate);
}

double measure_memcpy(void* to, const void* from, std::int64_t bytes) {
  return best_rate(bytes, [&] {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    asm volatile("" : : "r"(to) : "memory");
  });
}

template <typename T>
void measure_checks(const char* check_name, const char* copy_name, const char* place, Dtype dtype, Buffers<T>& buffers,
                    double memcpy_rate) {
  double sum = 0;
  print(check_name, place,
        best_rate(buffers.bytes(), [&] { sum += check_gradient(dtype, buffers.count, buffers.at[0]).squared_norm; }),
        memcpy_rate);
  print(copy_name, place,
        best_rate(buffers.bytes(),
                  [&] { sum += copy_and_check(dtype, buffers.count, buffers.at[0], buffers.at[1]).squared_norm; }),
        memcpy_rate);
  asm volatile("" : : "r"(&sum) : "memory");
}

void measure(const char* place, std::int64_t bytes) {
  Buffers<float> single(bytes / 4);
  Buffers<double> twice(bytes / 8);
  const double memcpy_rate = measure_memcpy(single.at[1], single.at[0], bytes);
  const Hyper plain, momentum{.momentum = 0.9}, amsgrad{.amsgrad = 1};
  measure_rule("sgd_f32", place, RuleKind::kSgd, plain, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("sgd_momentum_f32", place, RuleKind::kSgd, momentum, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("adagrad_f32", place, RuleKind::kAdagrad, plain, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("adam_f32", place, RuleKind::kAdam, plain, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("adam_amsgrad_f32", place, RuleKind::kAdam, amsgrad, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("adamw_f32", place, RuleKind::kAdamW, plain, Dtype::kFloat32, single, memcpy_rate);
  measure_rule("sgd_f64", place, RuleKind::kSgd, plain, Dtype::kFloat64, twice, memcpy_rate);
  measure_rule("adam_f64", place, RuleKind::kAdam, plain, Dtype::kFloat64, twice, memcpy_rate);
  measure_checks("check_f32", "copy_and_check_f32", place, Dtype::kFloat32, single, memcpy_rate);
  measure_checks("check_f64", "copy_and_check_f64", place, Dtype::kFloat64, twice, memcpy_rate);
}

}  // namespace

int main() {
  measure("", std::int64_t{128} << 10);       // all buffers of a rule stay in the second-level cache
  measure("_64mib", std::int64_t{64} << 20);  // none does
}
