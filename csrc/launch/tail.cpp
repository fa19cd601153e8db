#include "csrc/launch/tail.h"

#include <algorithm>

namespace downpour::launch {

void Tail::add(std::string_view bytes) {
  if (bytes.size() > largest_) {
    cut_ = true;
    bytes_.clear();
    bytes.remove_prefix(bytes.size() - largest_);
  }
  bytes_.append(bytes);
  if (bytes_.size() > 2 * largest_) {
    cut_ = true;
    bytes_.erase(0, bytes_.size() - largest_);
  }
}

std::vector<std::string> Tail::lines(std::size_t count) const {
  std::vector<std::string> result;
  std::string_view rest = bytes_;
  if (cut_) {
    // Of one single line longer than all we keep, its end is better than nothing.
    const auto first = rest.find('\n');
    rest.remove_prefix(first == std::string_view::npos || first + 1 == rest.size() ? 0 : first + 1);
  }
  if (rest.ends_with('\n')) {
    rest.remove_suffix(1);
  } else if (rest.empty()) {
    return result;
  }
  while (result.size() < count) {
    const auto start = rest.rfind('\n');
    result.emplace_back(rest.substr(start == std::string_view::npos ? 0 : start + 1));
    if (start == std::string_view::npos) {
      break;
    }
    rest = rest.substr(0, start);
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace downpour::launch
