#pragma once

#include <string>
#include <utility>

#include "csrc/base/environment.h"
#include "optimizers/downpour_sgd.h"
#include "optimizers/server_job.h"

namespace downpour::testing {

// DownpourSGD without its offer of shared memory, which no variable switches off.
class OverTcp : public torch::optim::Optimizer {
 public:
  OverTcp(optimizers::Training training, const DownpourSGD::Rule& rule, const DownpourOptions& options)
      : Optimizer(training.groups, optimizers::checked_defaults(rule)),
        replica_(std::move(training), rule, options, *this),
        job_(replica_, read_environment(), transport::SharedMemory::kNever) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    job_.step();
    return {};
  }
  void finish() { job_.finish(); }
  std::string transport() const { return job_.transport(); }

 protected:
  optimizers::Replica replica_;
  optimizers::ServerJob job_;
};

}  // namespace downpour::testing
