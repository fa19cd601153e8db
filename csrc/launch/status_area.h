#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace downpour::launch {

// Lines at the bottom of a terminal that are replaced in place. The cursor rests at the start of the line below them, so that
// erasing them and writing whole lines never disturbs either. Pure: it returns the bytes to write. Threads: one.
class StatusArea {
 public:
  // What to write before other output: moves up and clears; empty when nothing is drawn.
  std::string erase();
  // What to write to draw `lines`, each cut at `columns`; forgets nothing until erase().
  std::string draw(const std::vector<std::string>& lines, std::size_t columns);
  bool drawn() const { return height_ > 0; }

 private:
  std::size_t height_ = 0;
};

}  // namespace downpour::launch
