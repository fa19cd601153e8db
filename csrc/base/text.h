#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Numbers and lists as text, where streams would say it otherwise. Pure.
namespace downpour {

std::string fixed(double value, int digits);              // "12.30": so many digits after the point
std::string hexadecimal(std::uint64_t value);             // 16 digits
std::string join(const std::vector<std::string>& parts);  // "a,b,c"

}  // namespace downpour
