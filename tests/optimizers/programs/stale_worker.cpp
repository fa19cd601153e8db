// A worker under `downpour run` with the ledger of sample_worker.cpp and pushes that come too late: none may be older than one
// version, and worker 1's first one leaves only when worker 0 has made two. usage: stale_worker SAMPLES EPOCHS. Of a dropped push's
// samples it tells how many they were; they must be missing in the ledger, and nobody may get them again.
#include <cstdlib>
#include <iostream>
#include <string>

#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
#include "tests/optimizers/meet.h"

int main(int count, char** arguments) {
  using namespace downpour;
  if (count < 3) {
    std::cerr << "usage: stale_worker SAMPLES EPOCHS\n";
    return 2;
  }
  const std::int64_t size = std::atoll(arguments[1]);
  torch::set_num_threads(1);
  const torch::Tensor counts = torch::zeros({size}).requires_grad_(true);
  DownpourSGD downpour(std::vector<torch::Tensor>{counts}, torch::optim::SGDOptions(0),
                       DownpourOptions().max_staleness(1));
  downpour.param_groups()[0].options().set_lr(-1);
  Samples samples(downpour, size, SamplesOptions().batch_size(4).epochs(std::atoll(arguments[2])).seed(3));
  testing::meet("joined", downpour.rank() == 0);
  std::int64_t batches = 0, dropped = 0;
  while (const auto batch = samples.next()) {
    downpour.zero_grad();
    counts.index_select(0, batch->indices).sum().backward();
    if (batches == (downpour.rank() == 0 ? 2 : 0)) {
      testing::meet("late", downpour.rank() == 0);
    }
    downpour.step();
    ++batches;
    dropped += downpour.stats().stale > 0 ? batch->indices.numel() : 0;
  }
  downpour.finish();
  std::cout << "batches " << batches << std::endl << "dropped " << dropped << std::endl;
  std::cout << "counted " << counts.sum().item<double>() << std::endl;
  std::cout << "most " << counts.max().item<double>() << std::endl;
  return 0;
}
