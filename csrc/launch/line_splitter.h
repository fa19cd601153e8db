#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace downpour::launch {

// Cuts a stream of bytes into whole lines, so that lines of several processes never mix. Any byte may occur; only '\n' ends a
// line. A line longer than the limit is handed on in pieces of that size, each ended as if it were a line: memory is bounded.
// Threads: one.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t largest_line_bytes = 256 * 1024) : largest_(largest_line_bytes) {}

  // Appends the lines that `bytes` completes to `out`, each as prefix, line, '\n'.
  void add(std::string_view bytes, std::string_view prefix, std::string& out);
  // The stream ended: a last line without '\n' gets one.
  void finish(std::string_view prefix, std::string& out);

 private:
  void keep(std::string_view rest, std::string_view prefix, std::string& out);

  std::size_t largest_;
  std::string partial_;
};

}  // namespace downpour::launch
