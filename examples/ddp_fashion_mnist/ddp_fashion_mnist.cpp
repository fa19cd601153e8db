// The plain loop, data-parallel. usage: downpour run --workers 2 -- ddp_fashion_mnist IMAGES EPOCHS SEED [STEPS]
#include <downpour/downpour.h>
#include <torch/torch.h>

#include <iostream>
#include <limits>

#include "examples/fashion_mnist/fashion.h"

// Every rank must hold the same values: 0 where they do.
double difference_to_rank_0(c10d::ProcessGroup& group, const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double worst = 0;
  for (const auto& parameter : module.parameters()) {
    std::vector<torch::Tensor> values{parameter.detach().clone()};
    group.broadcast(values)->wait();
    worst = std::max(worst, (values[0] - parameter).abs().max().item<double>());
  }
  return worst;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: ddp_fashion_mnist IMAGES EPOCHS SEED [STEPS]\n";
    return 2;
  }
  const int64_t epochs = std::atoll(argv[2]);
  int64_t steps_left = argc > 4 ? std::atoll(argv[4]) : std::numeric_limits<int64_t>::max();
  const auto group = downpour::init_process_group();  // 1
  const int64_t rank = group->getRank(), world = group->getSize();
  const int64_t batch = 64 / world;
  torch::manual_seed(std::atoll(argv[3]));  // the same on all ranks, so that their orders are
  const auto train = fashion::load(argv[1], true);
  const auto test = fashion::load(argv[1], false);
  fashion::Net net;
  downpour::DistributedDataParallel ddp(*net, group);  // 2
  torch::optim::Adagrad optimizer(net->parameters(), torch::optim::AdagradOptions(0.01));
  for (int64_t epoch = 0; epoch < epochs && steps_left > 0; ++epoch) {
    const auto order = torch::randperm(train.x.size(0));
    const int64_t share = order.size(0) / world;  // 3: this rank's part of the data
    for (const auto& indices : order.narrow(0, rank * share, share).split(batch)) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(net(train.x.index_select(0, indices)), train.y.index_select(0, indices));
      loss.backward();
      optimizer.step();
      if (--steps_left == 0) {
        break;
      }
    }
  }
  const double difference = difference_to_rank_0(*group, *net);
  const double accuracy = rank == 0 ? fashion::accuracy(net, test) : 0;
  if (rank == 0) {
    std::cout << "test accuracy " << accuracy << " on " << world << " ranks, largest difference between them "
              << difference << "\n";
  }
  group->barrier()->wait();
  downpour::destroy_process_group(group);
  return difference == 0 && (rank != 0 || epochs < 2 || steps_left == 0 || accuracy >= 0.88) ? 0 : 1;
}
