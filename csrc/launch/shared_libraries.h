#pragma once

#include <string>
#include <vector>

#include "csrc/launch/variables.h"

namespace downpour::launch {

struct LibraryReport {
  bool dynamic = true;               // false: a script or a static program, which needs none
  std::vector<std::string> found;    // "libc10.so => /path/libc10.so"
  std::vector<std::string> missing;  // "libcudart.so.13", or a version that a library lacks, as the loader says it
};

// What the dynamic loader would load for a program. The loader only lists: no code of the program runs.
// Errors: Error for a file that cannot be read. Blocks: while the loader works, 10 s at most.
LibraryReport shared_libraries(const std::string& program, const Variables& variables);

// The loader's own words ("\tlibx.so => not found"), sorted out. Pure.
LibraryReport parse_loader_list(const std::string& text);

// What to do about a missing library, by its name. Pure.
std::string library_fix(const std::string& name);

}  // namespace downpour::launch
