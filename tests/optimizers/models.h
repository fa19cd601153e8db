#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

// Small models and training loops that the tests of this folder and their programs share.
namespace downpour::testing {

struct Mlp : torch::nn::Module {
  explicit Mlp(torch::nn::BatchNorm1d norm_layer = nullptr) {
    first = register_module("first", torch::nn::Linear(6, 16));
    if (norm_layer) {
      norm = register_module("norm", norm_layer);
    }
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    return second(torch::relu(norm ? norm(x) : x));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

inline std::shared_ptr<Mlp> make_mlp(std::uint64_t seed = 7) {
  torch::manual_seed(seed);
  return std::make_shared<Mlp>();
}

// Parameters of every kind: several axes, transposed, sliced, double, empty, scalar, and one that is never used.
struct Zoo {
  Zoo() {
    torch::manual_seed(11);
    add("plain", torch::randn({5, 7}));
    add("transposed", torch::randn({4, 3}).t());
    add("sliced", torch::randn({6, 8}).slice(1, 0, 8, 2));
    add("double", torch::randn({9}, torch::kDouble));
    add("empty", torch::zeros({0, 3}));
    add("scalar", torch::randn({}));
    add("channels_last", torch::randn({2, 3, 4, 4}).to(torch::MemoryFormat::ChannelsLast));
    add("large", torch::randn({300, 301}));
    add("unused", torch::randn({3}));
  }
  void add(const std::string& name, torch::Tensor tensor) {
    names.push_back(name);
    parameters.push_back(tensor.detach().requires_grad_(true));
  }
  // Gradients that depend on the values and on the step; "unused" never has one, "scalar" only at even steps.
  torch::Tensor loss(std::int64_t step) const {
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (std::size_t i = 0; i + 1 < parameters.size(); ++i) {
      if (names[i] != "scalar" || step % 2 == 0) {
        const auto& p = parameters[i];
        const auto target = torch::full_like(p.detach(), 0.1 * static_cast<double>(step + 1));
        sum = sum + ((p - target).pow(3) + p.sin()).to(torch::kDouble).mean();
      }
    }
    return sum;
  }
  std::vector<std::string> names;
  std::vector<torch::Tensor> parameters;
};

struct Batch {
  torch::Tensor inputs, targets;
};

inline Batch make_batch(std::int64_t number, std::int64_t size = 8) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + number));
  const auto inputs = torch::randn({size, 6}, generator, torch::kFloat);
  const auto targets = (inputs.narrow(1, 0, 3).argmax(1));
  return {inputs, targets};
}

// Wherever the model lies.
inline torch::Tensor loss_of(Mlp& net, const Batch& batch) {
  const auto device = net.first->weight.device();
  return torch::nn::functional::cross_entropy(net.forward(batch.inputs.to(device)), batch.targets.to(device));
}

// What differs between plain loops; the optimizer is any torch::optim::Optimizer.
struct Loop {
  std::int64_t steps = 20;
  std::int64_t first_batch = 0;
  std::int64_t accumulate = 1;
  double clip_norm = 0;
  bool set_to_none = true;
  std::int64_t decay_every = 0;  // StepLR
};

inline void train(Mlp& net, torch::optim::Optimizer& optimizer, const Loop& loop) {
  torch::optim::StepLR scheduler(optimizer, loop.decay_every > 0 ? static_cast<unsigned>(loop.decay_every) : 1u << 30,
                                 0.5);
  std::int64_t batch = loop.first_batch;
  for (std::int64_t step = 0; step < loop.steps; ++step) {
    optimizer.zero_grad(loop.set_to_none);
    for (std::int64_t i = 0; i < loop.accumulate; ++i) {
      (loss_of(net, make_batch(batch++)) / static_cast<double>(loop.accumulate)).backward();
    }
    if (loop.clip_norm > 0) {
      torch::nn::utils::clip_grad_norm_(net.parameters(), loop.clip_norm);
    }
    optimizer.step();
    if (loop.decay_every > 0) {
      scheduler.step();
    }
  }
}

inline bool bitwise_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) {
    equal = torch::equal(a[i], b[i]);
  }
  return equal;
}

}  // namespace downpour::testing
