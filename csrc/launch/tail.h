#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace downpour::launch {

// The last lines of a stream, in bounded memory (64 KiB at rest, twice that while they pass). Threads: one.
class Tail {
 public:
  explicit Tail(std::size_t largest_bytes = 64 * 1024) : largest_(largest_bytes) {}
  void add(std::string_view bytes);
  // At most `count` lines, oldest first, without their '\n'. A first line that is known only in part is left out.
  std::vector<std::string> lines(std::size_t count) const;

 private:
  std::size_t largest_;
  bool cut_ = false;  // the first line has lost its beginning
  std::string bytes_;
};

// The last `count` of these lines that are no frame of the stack which a c10::Error brings along, and would hide what it
// says, nor empty lines at the end; where there is no other line, of all. Pure.
std::vector<std::string> digest_of(const std::vector<std::string>& lines, std::size_t count);

}  // namespace downpour::launch
