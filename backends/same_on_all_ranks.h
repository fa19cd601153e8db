#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace downpour::backends {

// Blocks: until all ranks have shown their lines. Errors: Error, on every rank the same, with `what` before the first line (counted from
// 0) in which some rank differs from rank 0.
void check_same_on_all_ranks(c10d::ProcessGroup& group, const std::string& what, const std::vector<std::string>& lines);

}  // namespace downpour::backends
