#pragma once

#include <cstdint>
#include <string_view>

#include "csrc/base/error.h"

namespace downpour {

// The element types that a parameter may have; the values are on the wire and in snapshots.
enum class Dtype : std::uint8_t { kFloat32 = 1, kFloat64 = 2 };

constexpr std::int64_t size_bytes(Dtype dtype) { return dtype == Dtype::kFloat64 ? 8 : 4; }
constexpr std::string_view name(Dtype dtype) { return dtype == Dtype::kFloat64 ? "float64" : "float32"; }

// Errors: ProtocolError for a value that is no dtype; for bytes from outside.
inline Dtype to_dtype(std::uint8_t value) {
  DOWNPOUR_CHECK_AS(ProtocolError, value == 1 || value == 2, "dtype ", int{value},
                    " is not float32 (1) or float64 (2)");
  return static_cast<Dtype>(value);
}

}  // namespace downpour
