#pragma once

#include <string_view>

namespace downpour {

// Of the library and the program; CMakeLists.txt reads it here.
constexpr std::string_view kVersion = "0.1.0";

}  // namespace downpour
