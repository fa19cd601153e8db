#include "csrc/base/json_text.h"

#include "csrc/base/error.h"

namespace downpour {

void check_json_depth(std::string_view text, int max_depth, std::string_view what) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      DOWNPOUR_CHECK(++depth <= max_depth, what, ": byte ", i, ": nested deeper than ", max_depth, " levels");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace downpour
