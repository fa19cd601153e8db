#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace downpour::backends {

// Blocks: until all ranks have shown their lines, over a device that the group serves. Errors: Error, on every rank the same, with `what`
// before the first line in which some rank differs from rank 0.
void check_same_on_all_ranks(c10d::ProcessGroup& group, at::Device device, const std::string& what,
                             const std::vector<std::string>& lines);

// Sets the values of a tensor, of any dtype and strides, to those on rank 0. Blocks: as a call does.
void take_from_rank_0(c10d::ProcessGroup& group, const at::Tensor& tensor);

}  // namespace downpour::backends
