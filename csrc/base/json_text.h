#pragma once

#include <string_view>

namespace downpour {

// Looks at JSON from outside before a parser does: refuses text that nests arrays and objects deeper than `max_depth`.
// Says nothing about whether it is valid JSON. Errors: Error naming `what` and the byte.
void check_json_depth(std::string_view text, int max_depth, std::string_view what);

}  // namespace downpour
