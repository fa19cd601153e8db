#pragma once

#include <sys/types.h>

#include <memory>

#include "csrc/model/gradient_hooks.h"
#include "optimizers/departures.h"
#include "optimizers/downpour_sgd.h"
#include "optimizers/job.h"
#include "optimizers/replica.h"

namespace downpour {

// What a DownpourSGD holds besides torch::optim's part; Samples reaches it as a friend. Members are destroyed hooks first.
struct DownpourSGD::State {
  State(optimizers::Training training, const Rule& rule, DownpourOptions options, DownpourSGD& optimizer);

  void gradient_ready(std::size_t index);
  void check_process(const char* operation) const;
  void check_usable(const char* operation) const;  // and not finished
  void step();

  optimizers::Replica replica;
  optimizers::Departures departures;
  std::unique_ptr<optimizers::Job> job;
  std::unique_ptr<model::GradientHooks> hooks;  // under overlap
  bool finished = false;
  pid_t pid;
};

}  // namespace downpour
