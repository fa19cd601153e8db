// The loop as a LibTorch user has it: one process. usage: fashion_mnist_plain IMAGES EPOCHS SEED [CURVE]
#include <torch/torch.h>

#include <iostream>

#include "examples/fashion_mnist/fashion.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: fashion_mnist_plain IMAGES EPOCHS SEED [CURVE]\n";
    return 2;
  }
  const int64_t epochs = std::atoll(argv[2]);
  const int64_t batch = 64;
  torch::manual_seed(std::atoll(argv[3]));
  const auto train = fashion::load(argv[1], true);
  const auto test = fashion::load(argv[1], false);
  fashion::Net net;
  torch::optim::Adagrad optimizer(net->parameters(), torch::optim::AdagradOptions(0.01));
  fashion::Curve curve(argc > 4 ? argv[4] : "/dev/null");
  int64_t samples = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto order = torch::randperm(train.x.size(0));
    for (const auto& indices : order.split(batch)) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(net(train.x.index_select(0, indices)), train.y.index_select(0, indices));
      loss.backward();
      optimizer.step();
      samples += indices.size(0);
      if (samples / batch % 10 == 0) {
        curve.add(samples, loss.item<double>());
      }
    }
  }
  curve.stop_clock();
  const double accuracy = fashion::accuracy(net, test);
  curve.finish(samples, accuracy);
  torch::save(net, "fashion_mnist.pt");
  std::cout << "test accuracy " << accuracy << " after " << samples << " samples\n";
}
