// One step of DownpourSGD in a world of one against torch::optim's own, interleaved, on the parameters of two models.
#include <downpour/downpour.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using downpour::DownpourSGD;
using torch::Tensor;

constexpr int kWarm = 20, kSteps = 200;

std::vector<Tensor> parameters(const std::vector<std::vector<int64_t>>& shapes) {
  torch::manual_seed(1);
  std::vector<Tensor> tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(torch::randn(shape).mul_(0.1).requires_grad_(true));
    tensors.back().mutable_grad() = torch::randn(shape).mul_(0.01);
  }
  return tensors;
}

std::vector<Tensor> cnn() {
  return parameters({{32, 1, 3, 3}, {32}, {64, 32, 3, 3}, {64}, {128, 9216}, {128}, {10, 128}, {10}});
}

std::vector<Tensor> mlp() {
  return parameters({{2048, 784}, {2048}, {2048, 2048}, {2048}, {800, 2048}, {800}, {10, 800}, {10}});
}

double step_ms(torch::optim::Optimizer& optimizer) {
  const auto start = std::chrono::steady_clock::now();
  optimizer.step();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Both step the same tensors in turn, so that neither has the better memory.
template <typename Torch, typename Options>
void compare(const std::string& model, std::vector<Tensor> (*make)(), const std::string& rule, const Options& options) {
  const std::vector<Tensor> shared = make();
  Torch theirs(shared, options);
  DownpourSGD ours(shared, options);
  std::vector<double> theirs_ms, ours_ms;
  for (int step = 0; step < kWarm + kSteps; ++step) {
    const double their_step = step_ms(theirs), our_step = step_ms(ours);
    if (step >= kWarm) {
      theirs_ms.push_back(their_step);
      ours_ms.push_back(our_step);
    }
  }
  const double value = median(ours_ms), peer = median(theirs_ms);
  std::printf(
      "{\"name\":\"optimizer.overhead_world1\",\"case\":\"%s.%s\",\"value\":%.4f,\"unit\":\"ms\",\"peer\":\"torch::"
      "optim\","
      "\"peer_value\":%.4f,\"ratio\":%.3f}\n",
      model.c_str(), rule.c_str(), value, peer, value / peer);
}

void compare_all(const std::string& model, std::vector<Tensor> (*make)()) {
  compare<torch::optim::SGD>(model, make, "sgd", torch::optim::SGDOptions(1e-4));
  compare<torch::optim::SGD>(model, make, "sgd_momentum",
                             torch::optim::SGDOptions(1e-4).momentum(0.9).weight_decay(1e-4));
  compare<torch::optim::Adagrad>(model, make, "adagrad", torch::optim::AdagradOptions(1e-4));
  compare<torch::optim::Adam>(model, make, "adam", torch::optim::AdamOptions(1e-4));
  compare<torch::optim::AdamW>(model, make, "adamw", torch::optim::AdamWOptions(1e-4));
}

}  // namespace

int main() {
  downpour::keep_freed_memory();
  torch::set_num_threads(1);
  compare_all("cnn", cnn);
  compare_all("mlp", mlp);
}
