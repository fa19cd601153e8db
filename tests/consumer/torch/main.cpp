// The smallest training loop on an installed Downpour; without a launcher it is a world of one, equal to torch::optim.
#include <downpour/downpour.h>

#include <iostream>

int main() {
  torch::manual_seed(1);
  torch::nn::Linear net(4, 2);
  const auto before = net->weight.detach().clone();
  downpour::DownpourSGD optimizer(*net, torch::optim::SGDOptions(0.5));
  net(torch::ones({3, 4})).sum().backward();
  const auto expected = before - 0.5 * net->weight.grad();
  optimizer.step();
  optimizer.finish();
  if (!net->weight.equal(expected)) {
    std::cerr << "expected\n" << expected << "\nfound\n" << net->weight << '\n';
    return 1;
  }
  return 0;
}
