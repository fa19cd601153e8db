#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

// What both versions of the example share: the images, the network, the evaluation and a log of the loss.
namespace fashion {

struct Images {
  torch::Tensor x;  // float32 [n, 1, 28, 28], mean 0, deviation 1
  torch::Tensor y;  // int64 [n]
};

inline Images load(const std::string& folder, bool train) {
  using torch::data::datasets::MNIST;
  MNIST set(folder, train ? MNIST::Mode::kTrain : MNIST::Mode::kTest);
  return {(set.images() - 0.2860) / 0.3530, set.targets()};
}

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 32, 3)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(32, 64, 3)};
  torch::nn::Linear fc1{64 * 12 * 12, 128};
  torch::nn::Linear fc2{128, 10};
  NetImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2).flatten(1);
    return fc2(torch::relu(fc1(x)));
  }
};
TORCH_MODULE(Net);

// The part of the test images that the network names rightly.
inline double accuracy(Net& net, const Images& test) {
  torch::NoGradGuard no_grad;
  net->eval();  // no matter to this network; to one with BatchNorm or Dropout it is
  int64_t right = 0;
  for (int64_t begin = 0; begin < test.x.size(0); begin += 500) {
    const auto guess = net(test.x.narrow(0, begin, 500)).argmax(1);
    right += guess.eq(test.y.narrow(0, begin, 500)).sum().item<int64_t>();
  }
  net->train();
  return static_cast<double>(right) / static_cast<double>(test.x.size(0));
}

// "samples seconds loss" lines, and at the end "total samples seconds accuracy", for fashion_mnist_report.
class Curve {
 public:
  explicit Curve(const std::string& path) : file_(path) {}
  void add(int64_t samples, double loss) { file_ << samples << ' ' << seconds() << ' ' << loss << '\n'; }
  void stop_clock() { total_ = seconds(); }
  void finish(int64_t samples, double accuracy) {
    file_ << "total " << samples << ' ' << total_ << ' ' << accuracy << '\n';
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  std::ofstream file_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double total_ = 0;
};

}  // namespace fashion
