#include "backends/agreed_buffers.h"

namespace downpour::backends {

AgreedBuffers::AgreedBuffers(const std::vector<at::Tensor>& buffers, DdpBuffers policy) : policy_(policy) {
  for (const at::Tensor& buffer : buffers) {
    if (policy != DdpBuffers::kLocal && buffer.is_floating_point() && buffer.numel() > 0) {
      alike_[c10::str(buffer.scalar_type(), buffer.device())].push_back(buffer);
    }
  }
}

void AgreedBuffers::share(c10d::ProcessGroup& group) const {
  for (const auto& [kind, tensors] : alike_) {
    share(group, tensors);
  }
}

void AgreedBuffers::share(c10d::ProcessGroup& group, const std::vector<at::Tensor>& alike) const {
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : alike) {
    flat.push_back(tensor.reshape({-1}));
    sizes.push_back(tensor.numel());
  }
  std::vector<at::Tensor> all{at::cat(flat)};
  if (policy_ == DdpBuffers::kFromRank0) {
    group.broadcast(all)->wait();
  } else {
    all[0].mul_(1.0 / group.getSize());
    group.allreduce(all)->wait();
  }
  const auto parts = all[0].split_with_sizes(sizes);
  for (std::size_t i = 0; i < alike.size(); ++i) {
    alike[i].copy_(parts[i].view(alike[i].sizes()));
  }
}

}  // namespace downpour::backends
