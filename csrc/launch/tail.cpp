#include "csrc/launch/tail.h"

#include <algorithm>

namespace downpour::launch {
namespace {

// "frame #6: f() + 0x1 (...)", and the heading of those.
bool is_of_stack(std::string_view line) {
  constexpr std::string_view kFrame = "frame #";
  if (!line.starts_with(kFrame)) {
    return line.starts_with("Exception raised from ");
  }
  const auto number = line.substr(kFrame.size());
  const auto end = number.find_first_not_of("0123456789");
  return end != 0 && end != std::string_view::npos && number.substr(end).starts_with(": ");
}

}  // namespace

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

std::vector<std::string> digest_of(const std::vector<std::string>& lines, std::size_t count) {
  std::vector<std::string> result;
  for (auto line = lines.rbegin(); line != lines.rend() && result.size() < count; ++line) {
    const bool says_nothing = result.empty() && line->empty();
    if (!is_of_stack(*line) && !says_nothing) {
      result.push_back(*line);
    }
  }
  if (result.empty()) {
    result.assign(lines.rbegin(), lines.rbegin() + static_cast<std::ptrdiff_t>(std::min(count, lines.size())));
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace downpour::launch
