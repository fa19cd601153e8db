#pragma once

#include <cstdint>
#include <string_view>

#include "csrc/base/error.h"

// What collectives move and how they combine it: element types and reduce operations, with the values they have on the wire.
namespace downpour::collective {

enum class ElementType : std::uint8_t {
  kBool = 1,  // one byte, 0 or 1
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex64,   // two float32
  kComplex128,  // two float64
  kOpaque8,     // bytes that are only moved; no reduction knows them
};
inline constexpr ElementType kLastElementType = ElementType::kOpaque8;

enum class ReduceOp : std::uint8_t {
  kSum = 1,
  kAverage,  // the sum divided by the world size
  kProduct,
  kMinimum,
  kMaximum,
  kBitAnd,
  kBitOr,
  kBitXor,
};
inline constexpr ReduceOp kLastReduceOp = ReduceOp::kBitXor;

std::int64_t size_bytes(ElementType type);
std::string_view name(
    ElementType type);               // as LibTorch prints it: "float", "long", "c10::BFloat16"; "bytes" for kOpaque8
std::string_view name(ReduceOp op);  // "sum", "avg", "product", "min", "max", "band", "bor", "bxor"

// Which pairs there are: sum and product for all types but kOpaque8 (of bool: or and and), average for floating and complex
// types, minimum and maximum for all but complex (of bool: and and or), the bit operations for integers and bool.
bool is_supported(ElementType type, ReduceOp op);
// Errors: Error naming both and what there is for that type.
void check_supported(ElementType type, ReduceOp op);

}  // namespace downpour::collective
