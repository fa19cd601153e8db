#pragma once

#include <torch/arg.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <string>

namespace downpour {

struct InitOptions {
  // How long a call, and the arrival of all ranks, may take.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(5);
  // What serves CUDA tensors: "downpour" stages them through host memory; "nccl" is torch's own ProcessGroupNCCL in the same group.
  TORCH_ARG(std::string, cuda_backend) = "downpour";
  // What torch.ops._c10d_functional and TorchScript call the group.
  TORCH_ARG(std::string, name) = "default";
  TORCH_ARG(bool, insecure) = false;  // off loopback, over TCP that is not encrypted
};

// The group of all ranks of the job, ready for calls; its name is registered, so that torch.ops.c10d.* and _c10d_functional find it, until
// destroy_process_group(). Blocks: until all ranks have come, or the timeout. Errors: Error as read_place() in place.h; TimeoutError naming the
// ranks that are missing; CommError.
c10::intrusive_ptr<c10d::ProcessGroup> init_process_group(const InitOptions& options = {});
// The same at a place, and over a store, of the caller's own.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                          int world, const InitOptions& options = {});
// Takes the name back and ends the group: calls under way are done first. A group also ends when its last owner lets go of it.
void destroy_process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace downpour
