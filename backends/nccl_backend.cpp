#include "backends/nccl_backend.h"

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "csrc/base/error.h"

namespace downpour::backends {

#ifdef USE_C10D_NCCL
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world,
                                                    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, world,
                                                     std::move(options));
}
#else
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& /*store*/, int /*rank*/,
                                                    int /*world*/, std::chrono::milliseconds /*timeout*/) {
  throw Error(
      "cuda_backend 'nccl': this Downpour was built without CUDA or NCCL's header; build it with -DDOWNPOUR_CUDA=ON "
      "where "
      "nccl.h is found, or take cuda_backend 'downpour'");
}
#endif

}  // namespace downpour::backends
