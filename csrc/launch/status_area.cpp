#include "csrc/launch/status_area.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace downpour::launch {

std::string StatusArea::erase() {
  if (height_ == 0) {
    return {};
  }
  const std::size_t height = height_;
  height_ = 0;
  return concat("\r\x1b[", height, "A\x1b[J");
}

std::string StatusArea::draw(const std::vector<std::string>& lines, std::size_t columns) {
  std::string out = erase();
  for (const std::string& line : lines) {
    // A full last column would wrap on some terminals.
    out.append(line, 0, columns > 1 ? columns - 1 : std::string::npos).append("\n");
  }
  height_ = lines.size();
  return out;
}

}  // namespace downpour::launch
