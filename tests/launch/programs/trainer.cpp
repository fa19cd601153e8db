// `trainer STEPS [FIFO [ELEMENTS]]`: a worker without LibTorch. Each step pushes what adds 1 to every value, and pulls;
// half-way it prints "half-way" and, given a FIFO that is not "", waits until somebody has written a byte to FIFO.RANK. Rank 0
// prints the value in the end, which is the number of pushes that were applied.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/job_worker.h"
#include "tests/support/one_parameter.h"

namespace {

using namespace downpour;

ps::Agreement agreement(std::int64_t elements) {
  ps::Agreement result;
  result.schema.parameters = {{"weight", {elements}, Dtype::kFloat32, 0}};
  result.schema.rule = ps::RuleKind::kSgd;
  return result;
}

class Trainer {
 public:
  Trainer(const Environment& environment, std::int64_t elements)
      : rank_(environment.rank),
        worker_(ps::member_options(environment), agreement(elements)),
        values_(static_cast<std::size_t>(elements)) {
    ps::initialise(worker_.client, values_);
  }

  void step(std::int64_t number) {
    ps::push(worker_.client, std::vector<float>(values_.size(), 1.0f));
    ps::pull(worker_.client, values_);
    const ps::StepReport report = worker_.client.settle();
    ps::Progress progress;
    progress.step = number;
    progress.samples = number * 64;
    progress.loss = 1.0 / static_cast<double>(number);
    progress.mean_staleness = report.mean_staleness;
    worker_.member.report(progress);
    worker_.member.tick(number);
  }

  void finish() {
    worker_.client.settle();
    worker_.member.finish();
    if (rank_ == 0) {
      ps::pull(worker_.client, values_);
      std::printf("value %g\n", static_cast<double>(values_.front()));
    }
  }

 private:
  int rank_;
  ps::JobWorker worker_;
  std::vector<float> values_;
};

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  try {
    const Environment environment = read_environment();
    Trainer trainer(environment, argc > 3 ? std::atoi(argv[3]) : 1000);
    for (int number = 1; number <= steps; ++number) {
      trainer.step(number);
      if (number == steps / 2) {
        ps::wait_half_way(argc > 2 ? argv[2] : "", environment.rank);
      }
    }
    trainer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
