#include "csrc/launch/line_splitter.h"

#include <algorithm>

namespace downpour::launch {

void LineSplitter::add(std::string_view bytes, std::string_view prefix, std::string& out) {
  while (true) {
    const auto end = bytes.find('\n');
    if (end == std::string_view::npos) {
      keep(bytes, prefix, out);
      return;
    }
    keep(bytes.substr(0, end), prefix, out);
    out.append(prefix).append(partial_).push_back('\n');
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::keep(std::string_view rest, std::string_view prefix, std::string& out) {
  while (partial_.size() + rest.size() > largest_) {
    const std::size_t fits = largest_ - partial_.size();
    out.append(prefix).append(partial_).append(rest.substr(0, fits)).push_back('\n');
    partial_.clear();
    rest.remove_prefix(fits);
  }
  partial_.append(rest);
}

void LineSplitter::finish(std::string_view prefix, std::string& out) {
  if (!partial_.empty()) {
    out.append(prefix).append(partial_).push_back('\n');
    partial_.clear();
  }
}

}  // namespace downpour::launch
