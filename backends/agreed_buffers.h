#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "backends/distributed_data_parallel.h"

namespace downpour::backends {

// A module's floating-point buffers under a policy. Threads: one at a time. Owns: handles.
class AgreedBuffers {
 public:
  AgreedBuffers(const std::vector<at::Tensor>& buffers, DdpBuffers policy);

  // Every rank calls it alike. Blocks: for the other ranks.
  void share(c10d::ProcessGroup& group) const;

 private:
  void share(c10d::ProcessGroup& group, const std::vector<at::Tensor>& alike) const;

  DdpBuffers policy_;
  std::map<std::string, std::vector<at::Tensor>> alike_;  // by dtype and device: those that travel together
};

}  // namespace downpour::backends
