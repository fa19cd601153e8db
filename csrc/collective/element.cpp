#include "csrc/collective/element.h"

#include <array>
#include <cstddef>
#include <string>

namespace downpour::collective {
namespace {

enum class Kind { kBool, kInteger, kFloating, kComplex, kOpaque };

struct Traits {
  std::string_view name;
  std::int64_t size_bytes;
  Kind kind;
};

constexpr std::array<Traits, static_cast<std::size_t>(kLastElementType)> kTypes{{
    {"bool", 1, Kind::kBool},
    {"unsigned char", 1, Kind::kInteger},
    {"signed char", 1, Kind::kInteger},
    {"unsigned short", 2, Kind::kInteger},
    {"short", 2, Kind::kInteger},
    {"unsigned int", 4, Kind::kInteger},
    {"int", 4, Kind::kInteger},
    {"unsigned long", 8, Kind::kInteger},
    {"long", 8, Kind::kInteger},
    {"c10::Half", 2, Kind::kFloating},
    {"c10::BFloat16", 2, Kind::kFloating},
    {"float", 4, Kind::kFloating},
    {"double", 8, Kind::kFloating},
    {"c10::complex<float>", 8, Kind::kComplex},
    {"c10::complex<double>", 16, Kind::kComplex},
    {"bytes", 1, Kind::kOpaque},
}};

constexpr std::array<std::string_view, static_cast<std::size_t>(kLastReduceOp)> kOps{"sum", "avg",  "product", "min",
                                                                                     "max", "band", "bor",     "bxor"};

const Traits& traits(ElementType type) {
  const auto value = static_cast<std::size_t>(type);
  DOWNPOUR_INTERNAL_ASSERT(value >= 1 && value <= kTypes.size(), "element type ", value);
  return kTypes[value - 1];
}

bool is_of_bits(ReduceOp op) { return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor; }

// "sum, product and min"
std::string supported_ops(ElementType type) {
  std::string list;
  std::string_view last;
  for (std::size_t value = 1; value <= kOps.size(); ++value) {
    const auto op = static_cast<ReduceOp>(value);
    if (is_supported(type, op)) {
      list += last.empty() ? "" : concat(list.empty() ? "" : ", ", last);
      last = name(op);
    }
  }
  return concat(list, " and ", last);
}

}  // namespace

std::int64_t size_bytes(ElementType type) { return traits(type).size_bytes; }

std::string_view name(ElementType type) { return traits(type).name; }

std::string_view name(ReduceOp op) {
  const auto value = static_cast<std::size_t>(op);
  DOWNPOUR_INTERNAL_ASSERT(value >= 1 && value <= kOps.size(), "reduce operation ", value);
  return kOps[value - 1];
}

bool is_supported(ElementType type, ReduceOp op) {
  switch (traits(type).kind) {
    case Kind::kBool:
    case Kind::kInteger: return op != ReduceOp::kAverage;
    case Kind::kFloating: return !is_of_bits(op);
    case Kind::kComplex: return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kProduct;
    case Kind::kOpaque: return false;
  }
  return false;
}

void check_supported(ElementType type, ReduceOp op) {
  DOWNPOUR_CHECK(traits(type).kind != Kind::kOpaque, "reduction: there is no ", name(op), " of ", name(type),
                 "; they are only moved");
  DOWNPOUR_CHECK(is_supported(type, op), "reduction: there is no ", name(op), " of ", name(type), "; there are ",
                 supported_ops(type));
}

}  // namespace downpour::collective
