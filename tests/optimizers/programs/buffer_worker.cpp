// A worker under `downpour run` that looks at what becomes of BatchNorm's running statistics. usage: buffer_worker CASE [cuda]
// Each worker shows its layer the same two rows at every step, so that after n steps of one worker the statistics are
// start * (1 - m)^n + rows' * (1 - (1 - m)^n). Shared, they are the same of the workers' mean: where all see one version at
// each step because a step adds the mean change, and where nobody pulls because the mean is of what each has come to.
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

#include "optimizers/downpour_sgd.h"

namespace {

using namespace downpour;
using torch::Tensor;
using torch::optim::SGDOptions;

constexpr std::int64_t kSteps = 7;
constexpr double kMomentum = 0.1;  // BatchNorm's own default

struct Net : torch::nn::Module {
  Net() {
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    out = register_module("out", torch::nn::Linear(3, 1));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};

Tensor rows_of(int rank) {
  const Tensor middle = torch::arange(3, torch::kFloat) + (1 + rank);
  return torch::stack({middle - 0.5 * (rank + 1), middle + 0.5 * (rank + 1)});
}

struct Statistics {
  Tensor mean, var;
};

// Of workers first to last together.
Statistics expected(int first, int last) {
  const double kept = std::pow(1 - kMomentum, static_cast<double>(kSteps));
  Tensor mean = torch::zeros({3}, torch::kDouble), var = torch::zeros({3}, torch::kDouble);
  for (int rank = first; rank <= last; ++rank) {
    mean += (torch::arange(3, torch::kDouble) + (1 + rank)) / (last - first + 1);
    var += 2 * std::pow(0.5 * (rank + 1), 2) / (last - first + 1);
  }
  return {(1 - kept) * mean, kept + (1 - kept) * var};
}

bool has(const Net& net, const Statistics& statistics) {
  const auto close = [](const Tensor& found, const Tensor& wanted) {
    return torch::allclose(found.to(torch::kCPU, torch::kDouble), wanted, 1e-5, 1e-6);
  };
  return close(net.norm->running_mean, statistics.mean) && close(net.norm->running_var, statistics.var) &&
         net.norm->num_batches_tracked.item<std::int64_t>() == kSteps;
}

void train(Net& net, DownpourSGD& downpour) {
  const Tensor rows = rows_of(downpour.rank()).to(net.out->weight.device());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    downpour.zero_grad();
    net.out(net.norm(rows)).sum().backward();
    downpour.step();
  }
  downpour.finish();
}

int say(bool right, const Net& net) {
  std::cout << (right ? "as expected" : "WRONG") << ": " << net.norm->running_mean << net.norm->running_var
            << std::endl;
  return right ? 0 : 1;
}

int share(DownpourOptions options, torch::Device device) {
  const auto net = std::make_shared<Net>();
  net->to(device);
  const std::vector<torch::optim::OptimizerParamGroup> groups = {torch::optim::OptimizerParamGroup(net->parameters())};
  DownpourSGD downpour(*net, groups, SGDOptions(0.01), options.buffers(BufferPolicy::kShared));
  train(*net, downpour);
  return say(has(*net, expected(0, downpour.world_size() - 1)), *net);
}

// A mask that holds infinities and never changes, an observer whose minimum comes down from infinity, and a parameter beside them.
struct Observed : torch::nn::Module {
  Observed() {
    mask = register_buffer("mask", torch::full({2, 2}, -std::numeric_limits<float>::infinity()).triu(1));
    lowest = register_buffer("lowest", torch::full({}, std::numeric_limits<float>::infinity()));
    seen = register_buffer("seen", torch::zeros({}));
    weight = register_parameter("weight", torch::zeros({2}));
  }
  Tensor mask, lowest, seen, weight;
};

int share_infinities() {
  const auto net = std::make_shared<Observed>();
  const std::vector<torch::optim::OptimizerParamGroup> groups = {torch::optim::OptimizerParamGroup(net->parameters())};
  DownpourSGD downpour(*net, groups, SGDOptions(1), DownpourOptions().buffers(BufferPolicy::kShared));
  const Tensor mask = net->mask.clone();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const torch::NoGradGuard no_grad;
    net->lowest.copy_(torch::minimum(net->lowest, torch::full({}, 5.0 + downpour.rank())));
    net->seen.add_(downpour.world_size());
    net->weight.mutable_grad() = torch::ones({2});
    downpour.step();
  }
  downpour.finish();
  const double steps = static_cast<double>(kSteps * downpour.world_size());
  const bool right = net->mask.equal(mask) && net->lowest.item<double>() == 5.0 + downpour.rank() &&
                     net->seen.item<double>() == steps && net->weight.eq(-steps).all().item<bool>();
  std::cout << (right ? "as expected" : "WRONG") << ": " << net->mask << net->lowest << net->seen << net->weight
            << std::endl;
  return right ? 0 : 1;
}

// What worker 0 saves has worker 0's.
int keep() {
  const auto net = std::make_shared<Net>();
  DownpourSGD downpour(*net, SGDOptions(0.01));
  train(*net, downpour);
  std::stringstream file;
  torch::save(net, file);
  auto loaded = std::make_shared<Net>();
  torch::load(loaded, file);
  return say(has(*loaded, expected(downpour.rank(), downpour.rank())), *loaded);
}

}  // namespace

// A first synchronous step, or the wait before one, so that nobody begins with what another has changed already.
int main(int count, char** arguments) {
  const auto apart = DownpourOptions().warm_up_steps(1).n_fetch(100);
  const torch::Device device(count > 2 ? arguments[2] : "cpu");
  const std::map<std::string, std::function<int()>> cases = {
      {"synchronous", [&] { return share(DownpourOptions().warm_up_steps(kSteps), device); }},
      {"apart", [&] { return share(apart, device); }},
      {"apart_summed", [&] { return share(DownpourOptions(apart).n_push(2), device); }},
      {"infinite", share_infinities},
      {"local", keep},
  };
  const auto found = cases.find(count > 1 ? arguments[1] : "");
  if (found == cases.end()) {
    std::cerr << "usage: buffer_worker synchronous|apart|apart_summed|infinite|local [cuda]\n";
    return 2;
  }
  torch::set_num_threads(1);
  return found->second();
}
