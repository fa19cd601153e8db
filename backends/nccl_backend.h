#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace downpour::backends {

// torch's own backend for CUDA tensors. Errors: Error in a build without CUDA or NCCL's header.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world,
                                                    std::chrono::milliseconds timeout);

}  // namespace downpour::backends
