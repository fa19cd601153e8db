#include "backends/same_on_all_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "csrc/base/error.h"

namespace downpour::backends {
namespace {

std::vector<at::Tensor> gathered(c10d::ProcessGroup& group, const at::Tensor& mine) {
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    outputs[0].push_back(at::empty_like(mine));
  }
  std::vector<at::Tensor> inputs{mine};
  group.allgather(outputs, inputs)->wait();
  return outputs[0];
}

// Every rank's text; all-gather wants one size, so they are filled up with zeros.
std::vector<std::string> gathered(c10d::ProcessGroup& group, at::Device device, const std::string& mine) {
  std::int64_t longest = 0;
  const std::vector<at::Tensor> lengths = gathered(
      group, at::full({1}, static_cast<std::int64_t>(mine.size()), at::TensorOptions(at::kLong).device(device)));
  for (const at::Tensor& length : lengths) {
    longest = std::max(longest, length.item<std::int64_t>());
  }
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  std::vector<std::string> texts;
  for (const at::Tensor& text : gathered(group, padded.to(device))) {
    const auto length = static_cast<std::size_t>(lengths[texts.size()].item<std::int64_t>());
    const at::Tensor here = text.cpu();
    texts.emplace_back(static_cast<const char*>(here.const_data_ptr()), length);
  }
  return texts;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string line_at(const std::vector<std::string>& lines, std::size_t index) {
  return index < lines.size() ? lines[index] : "nothing";
}

}  // namespace

void check_same_on_all_ranks(c10d::ProcessGroup& group, at::Device device, const std::string& what,
                             const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  const std::vector<std::string> texts = gathered(group, device, text);
  const std::vector<std::string> expected = lines_of(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const std::vector<std::string> found = lines_of(texts[rank]);
    for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      DOWNPOUR_CHECK(line_at(expected, i) == line_at(found, i), what, line_at(expected, i), " on rank 0, ",
                     line_at(found, i), " on rank ", rank);
    }
  }
}

// As bytes: not every backend knows every dtype and every stride.
void take_from_rank_0(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.detach().contiguous();
  std::vector<at::Tensor> bytes{dense.view({-1}).view(at::kByte)};
  group.broadcast(bytes)->wait();
  if (!dense.is_alias_of(tensor)) {
    tensor.detach().copy_(dense);
  }
}

}  // namespace downpour::backends
