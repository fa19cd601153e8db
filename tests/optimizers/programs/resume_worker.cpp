// A worker under `downpour run` for jobs that are started again: the ledger of sample_worker.cpp (each weight counts how often
// its sample was used), and nothing that depends on this being the first start. usage: resume_worker SAMPLES EPOCHS BATCH_SIZE
// [PAUSE_AFTER]; after so many batches it waits to be killed.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"

namespace {

using namespace downpour;

void use(const torch::Tensor& counts, const torch::Tensor& indices, DownpourSGD& downpour) {
  downpour.zero_grad();
  counts.index_select(0, indices).sum().backward();
  downpour.step();
}

void wait_to_be_killed() {
  std::cout << "paused" << std::endl;
  for (;;) {
    ::pause();
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "usage: resume_worker SAMPLES EPOCHS BATCH_SIZE [PAUSE_AFTER]\n";
    return 2;
  }
  const std::int64_t size = std::atoll(arguments[1]), epochs = std::atoll(arguments[2]);
  const std::int64_t pause_after = count > 4 ? std::atoll(arguments[4]) : -1;
  torch::set_num_threads(1);
  const torch::Tensor counts = torch::zeros({size}).requires_grad_(true);
  DownpourSGD downpour(std::vector<torch::Tensor>{counts}, torch::optim::SGDOptions(0));
  downpour.param_groups()[0].options().set_lr(-1);
  Samples samples(downpour, size, SamplesOptions().batch_size(std::atoll(arguments[3])).epochs(epochs).seed(3));
  std::int64_t batches = 0;
  while (const auto batch = samples.next()) {
    if (batches == 0) {
      std::cout << "first epoch " << batch->epoch << std::endl;
    }
    use(counts, batch->indices, downpour);
    if (++batches == pause_after) {
      wait_to_be_killed();
    }
  }
  downpour.finish();
  std::cout << "gave " << batches << std::endl;
  std::cout << "used " << counts.min().item<double>() << " to " << counts.max().item<double>() << " times" << std::endl;
  return 0;
}
