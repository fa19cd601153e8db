// A worker under `downpour run` that keeps a ledger: one weight a sample, its gradient 1 where the sample is in the batch,
// learning rate -1, so that each weight counts how often its sample was used. usage: sample_worker SAMPLES EPOCHS N_PUSH
// [TROUBLE [US]]; TROUBLE any HOLD GATE: workers may die at any time, so nobody waits for the others at the start, and each life
// waits after HOLD batches for a byte from the FIFO GATE.RANK.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
#include "tests/optimizers/meet.h"

namespace {

using namespace downpour;

bool first_life_of(const char* rank) {
  return std::string(::getenv("RANK")) == rank && std::string(::getenv("DOWNPOUR_RESTARTS")) == "0";
}

// Workers 0 and 1 have both joined when this returns.
void begin_together() {
  if (first_life_of("0") || first_life_of("1")) {
    testing::meet("together", first_life_of("0"));
  }
}

// Worker 1's first life ends so many microseconds from now, wherever it is then.
void die_in(const std::string& time_us) {
  if (first_life_of("1")) {
    ::ualarm(static_cast<useconds_t>(std::stoul(time_us)), 0);
  }
}

// What befalls worker 1 in its first life, between the backward and the step of its seventh batch.
void suffer(const std::string& trouble, std::int64_t batch) {
  if (batch != 7 || !first_life_of("1")) {
    return;
  }
  if (trouble == "kill") {
    std::cout << "about to die" << std::endl;
    ::raise(SIGKILL);
  } else if (trouble == "stop") {
    std::cout << "stopped " << ::getpid() << std::endl;
    ::raise(SIGSTOP);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "usage: sample_worker SAMPLES EPOCHS N_PUSH [TROUBLE]\n";
    return 2;
  }
  const std::int64_t size = std::atoll(arguments[1]), epochs = std::atoll(arguments[2]);
  const std::string trouble = count > 4 ? arguments[4] : "";
  torch::set_num_threads(1);
  torch::Tensor counts = torch::zeros({size}).requires_grad_(true);
  auto options = DownpourOptions().n_push(std::atoll(arguments[3])).overlap(trouble == "overlap");
  if (trouble == "lead" || trouble == "kill" || trouble == "stop" || trouble == "die") {
    options.max_lead(3);  // so that worker 1 gets its share of the batches
  }
  DownpourSGD downpour(std::vector<torch::Tensor>{counts}, torch::optim::SGDOptions(0), options);
  downpour.param_groups()[0].options().set_lr(-1);
  const std::int64_t other_size = trouble == "differ" && downpour.rank() == 1 ? size + 1 : size;
  Samples samples(downpour, other_size, SamplesOptions().batch_size(4).epochs(epochs).seed(3));
  if (trouble != "differ" && trouble != "any") {
    begin_together();
  }
  if (trouble == "die") {
    die_in(arguments[5]);
  }
  std::int64_t batches = 0;
  while (const auto batch = samples.next()) {
    downpour.zero_grad();
    counts.index_select(0, batch->indices).sum().backward();
    suffer(trouble, ++batches);
    if (batches == 50) {
      std::cout << "under way" << std::endl;
    }
    downpour.step();
    if (trouble == "any" && batches == std::atoll(arguments[5])) {
      testing::wait_at_gate(arguments[6]);
    }
  }
  const std::string transport = downpour.transport();
  downpour.finish();
  const bool exact = torch::equal(counts.detach(), torch::full({size}, static_cast<double>(epochs)));
  std::cout << (exact ? "exact" : "INEXACT") << " after " << batches << " batches over " << transport << std::endl;
  if (!exact) {
    std::cout << counts.detach() << std::endl;
  }
  return exact ? 0 : 1;
}
