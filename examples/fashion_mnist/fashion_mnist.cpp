// The same loop on parameter servers. usage: downpour run --servers 2 --workers 2 -- fashion_mnist IMAGES EPOCHS SEED [CURVE]
#include <downpour/downpour.h>
#include <torch/torch.h>

#include <iostream>

#include "examples/fashion_mnist/fashion.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: fashion_mnist IMAGES EPOCHS SEED [CURVE]\n";
    return 2;
  }
  const int64_t epochs = std::atoll(argv[2]);
  const int64_t batch = 64;
  torch::manual_seed(std::atoll(argv[3]));
  const auto train = fashion::load(argv[1], true);
  const auto test = fashion::load(argv[1], false);
  fashion::Net net;
  downpour::DownpourSGD optimizer(*net, torch::optim::AdagradOptions(0.01));
  downpour::Samples leased(optimizer, train.x.size(0), downpour::SamplesOptions().batch_size(batch).epochs(epochs));
  fashion::Curve curve(argc > 4 && optimizer.rank() == 0 ? argv[4] : "/dev/null");
  int64_t samples = 0;
  while (const auto next = leased.next()) {
    const auto& indices = next->indices;
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(net(train.x.index_select(0, indices)), train.y.index_select(0, indices));
    loss.backward();
    optimizer.step();
    samples += indices.size(0);
    if (samples / batch % 10 == 0) {
      optimizer.report_loss(loss.item<double>());
      curve.add(samples * optimizer.world_size(), loss.item<double>());
    }
  }
  optimizer.finish();
  curve.stop_clock();
  if (optimizer.rank() == 0) {
    const double accuracy = fashion::accuracy(net, test);
    curve.finish(train.x.size(0) * epochs, accuracy);
    torch::save(net, "fashion_mnist.pt");
    std::cout << "test accuracy " << accuracy << " after " << train.x.size(0) * epochs << " samples\n";
  }
}
