#pragma once

#include <string_view>

namespace downpour::launch {

constexpr std::string_view kVersion = "0.1.0";

}  // namespace downpour::launch
