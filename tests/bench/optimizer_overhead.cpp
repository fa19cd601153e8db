// One step of DownpourSGD in a world of one against torch::optim's own, in turn, on the parameters of two models.
#include <downpour/downpour.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/bench/bench.h"

namespace {

using namespace downpour::bench;
using downpour::concat;
using downpour::DownpourSGD;
using torch::Tensor;

constexpr int kWarm = 20, kSteps = 200;
constexpr const char* kName = "optimizer.overhead_world1";

std::vector<Tensor> parameters(const std::vector<std::vector<int64_t>>& shapes) {
  torch::manual_seed(1);
  std::vector<Tensor> tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(torch::randn(shape).mul_(0.1).requires_grad_(true));
    tensors.back().mutable_grad() = torch::randn(shape).mul_(0.01);
  }
  return tensors;
}

std::vector<Tensor> cnn() {  // the demo's
  return parameters({{32, 1, 3, 3}, {32}, {64, 32, 3, 3}, {64}, {128, 9216}, {128}, {10, 128}, {10}});
}

std::vector<Tensor> mlp() {
  return parameters({{2048, 784}, {2048}, {2048, 2048}, {2048}, {800, 2048}, {800}, {10, 800}, {10}});
}

double step_ms(torch::optim::Optimizer& optimizer) {
  const double begin = now_s();
  optimizer.step();
  return 1e3 * (now_s() - begin);
}

struct Case {
  std::string name;
  Rounds ours_ms, theirs_ms;
};

// Both step the same tensors in turn, so that neither has the better memory.
template <typename Torch, typename Options>
void compare(std::vector<Case>& cases, const std::string& name, std::vector<Tensor> (*make)(), const Options& options) {
  Case result{concat(kName, ".", name), {}, {}};
  if (!is_any_wanted({kName, result.name})) {
    return;
  }
  const std::vector<Tensor> shared = make();
  Torch theirs(shared, options);
  DownpourSGD ours(shared, options);
  for (int step = 0; step < kWarm + kSteps; ++step) {
    const double their_step = step_ms(theirs), our_step = step_ms(ours);
    if (step >= kWarm) {
      result.theirs_ms.add(their_step);
      result.ours_ms.add(our_step);
    }
  }
  cases.push_back(std::move(result));
}

void compare_all(std::vector<Case>& cases, const std::string& model, std::vector<Tensor> (*make)()) {
  namespace optim = torch::optim;
  const auto with_momentum = optim::SGDOptions(1e-4).momentum(0.9).weight_decay(1e-4);
  compare<optim::SGD>(cases, model + ".sgd", make, optim::SGDOptions(1e-4));
  compare<optim::SGD>(cases, model + ".sgd_momentum", make, with_momentum);
  compare<optim::Adagrad>(cases, model + ".adagrad", make, optim::AdagradOptions(1e-4));
  compare<optim::Adam>(cases, model + ".adam", make, optim::AdamOptions(1e-4));
  compare<optim::AdamW>(cases, model + ".adamw", make, optim::AdamWOptions(1e-4));
}

Line line(const std::string& name, const Case& one) {
  return std::move(Line::quotient(name, one.ours_ms, one.theirs_ms, Better::kLess)
                       .add("ours_ms", one.ours_ms.median())
                       .add("torch_optim_ms", one.theirs_ms.median()));
}

}  // namespace

// The figure is that of the worst case; each case has a line of its own besides.
int main(int argc, char** argv) {
  take_filter(argc, argv);
  downpour::keep_freed_memory();
  torch::set_num_threads(1);
  std::vector<Case> cases;
  compare_all(cases, "cnn", cnn);
  compare_all(cases, "mlp", mlp);
  const Case* worst = nullptr;
  for (const Case& one : cases) {
    line(one.name, one).print();
    const auto ratio = [](const Case& which) { return which.ours_ms.over(which.theirs_ms).median(); };
    worst = worst == nullptr || ratio(one) > ratio(*worst) ? &one : worst;
  }
  if (worst != nullptr) {
    line(kName, *worst).add("worst_case", worst->name).at_most(1.05).print();
  }
}
