#include "csrc/collective/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc/base/random.h"
#include "tests/support/targets.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// ---- what is expected, from the formats' definitions, one element at a time ----

template <typename T>
T one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Elements that are computed with as they are.
template <typename T>
struct Plain {
  using Value = T;
  static constexpr std::size_t kBytes = sizeof(T);
  static T decode(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void encode(T value, std::byte* to) { std::memcpy(to, &value, sizeof(T)); }
};

struct Bool {
  using Value = bool;
  static constexpr std::size_t kBytes = 1;
  static bool decode(const std::byte* from) { return *from != std::byte{0}; }
  static void encode(bool value, std::byte* to) { *to = std::byte{value}; }
};

// A 16-bit floating point format after IEEE 754: kFraction bits of fraction, an exponent biased by kBias.
template <int kFraction, int kBias>
struct Small {
  using Value = float;
  static constexpr std::size_t kBytes = 2;
  static constexpr int kInfinity = ((1 << (15 - kFraction)) - 1) << kFraction;

  static float decode(const std::byte* from) {
    const auto bits = Plain<std::uint16_t>::decode(from);
    const int magnitude = bits & 0x7FFF;
    const int exponent = magnitude >> kFraction;
    const int fraction = magnitude & ((1 << kFraction) - 1);
    double value = exponent == 0 ? std::ldexp(fraction, 1 - kBias - kFraction)
                                 : std::ldexp(fraction + (1 << kFraction), exponent - kBias - kFraction);
    if (magnitude >= kInfinity) {
      value = magnitude == kInfinity ? std::numeric_limits<double>::infinity() : std::nan("");
    }
    return static_cast<float>(bits >> 15 != 0 ? -value : value);
  }

  static int magnitude_of(double value) {
    if (std::isnan(value)) {
      return kInfinity | (1 << (kFraction - 1));
    }
    if (std::isinf(value) || value == 0) {
      return value == 0 ? 0 : kInfinity;
    }
    const int exponent = std::max(std::ilogb(value), 1 - kBias);
    const auto units = static_cast<std::int64_t>(std::nearbyint(std::ldexp(value, kFraction - exponent)));
    const std::int64_t magnitude = ((std::int64_t{exponent} + kBias - 1) << kFraction) + units;
    return static_cast<int>(std::min(magnitude, std::int64_t{kInfinity}));
  }

  static void encode(float value, std::byte* to) {
    const int sign = std::signbit(value) && !std::isnan(value) ? 0x8000 : 0;
    Plain<std::uint16_t>::encode(static_cast<std::uint16_t>(sign | magnitude_of(std::fabs(value))), to);
  }
};
using Float16 = Small<10, 15>;
using Bfloat16 = Small<7, 127>;

template <typename T>
T combined(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMinimum || op == ReduceOp::kMaximum) {
    if (a != a || b != b) {
      return std::numeric_limits<T>::quiet_NaN();
    }
    return (op == ReduceOp::kMinimum ? b < a : a < b) ? b : a;
  }
  if constexpr (std::is_floating_point_v<T>) {
    return one_nan(op == ReduceOp::kProduct ? a * b : a + b);
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::kProduct: return static_cast<T>(x * y);
      case ReduceOp::kBitAnd: return static_cast<T>(x & y);
      case ReduceOp::kBitOr: return static_cast<T>(x | y);
      case ReduceOp::kBitXor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x + y);
    }
  }
}

template <>
bool combined(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMinimum:
    case ReduceOp::kBitAnd: return a && b;
    case ReduceOp::kBitXor: return a != b;
    default: return a || b;
  }
}

struct Sources {
  std::vector<std::vector<std::byte>> bytes;  // each at an odd place: its elements begin at byte 1

  const std::byte* element(std::size_t source, std::int64_t i, std::size_t size) const {
    return bytes[source].data() + 1 + static_cast<std::size_t>(i) * size;
  }
  std::vector<const void*> pointers() const {
    std::vector<const void*> all;
    for (const auto& source : bytes) {
      all.push_back(source.data() + 1);
    }
    return all;
  }
};

template <class Format>
void expect_element(const Reduction& reduction, const Sources& sources, std::int64_t i, std::byte* to) {
  auto value = Format::decode(sources.element(0, i, Format::kBytes));
  for (std::size_t source = 1; source < sources.bytes.size(); ++source) {
    value = combined(reduction.op, value, Format::decode(sources.element(source, i, Format::kBytes)));
  }
  if constexpr (std::is_floating_point_v<typename Format::Value>) {
    if (reduction.divisor != 1) {
      value = one_nan(value / static_cast<typename Format::Value>(reduction.divisor));
    }
  }
  Format::encode(value, to);
}

template <typename T>
void expect_complex_product(const Sources& sources, std::int64_t i, std::byte* to) {
  T re = Plain<T>::decode(sources.element(0, 2 * i, sizeof(T)));
  T im = Plain<T>::decode(sources.element(0, 2 * i + 1, sizeof(T)));
  for (std::size_t source = 1; source < sources.bytes.size(); ++source) {
    const T re2 = Plain<T>::decode(sources.element(source, 2 * i, sizeof(T)));
    const T im2 = Plain<T>::decode(sources.element(source, 2 * i + 1, sizeof(T)));
    volatile T products[] = {re * re2, im * im2, re * im2, im * re2};  // rounded, each of them
    re = one_nan(products[0] - products[1]);
    im = one_nan(products[2] + products[3]);
  }
  Plain<T>::encode(re, to);
  Plain<T>::encode(im, to + sizeof(T));
}

template <typename T>
void expect_complex(const Reduction& reduction, const Sources& sources, std::int64_t i, std::byte* to) {
  if (reduction.op == ReduceOp::kProduct) {
    expect_complex_product<T>(sources, i, to);
  } else {
    expect_element<Plain<T>>(reduction, sources, 2 * i, to);
    expect_element<Plain<T>>(reduction, sources, 2 * i + 1, to + sizeof(T));
  }
}

void expect_one(const Reduction& reduction, const Sources& sources, std::int64_t i, std::byte* to) {
  switch (reduction.type) {
    case ElementType::kBool: return expect_element<Bool>(reduction, sources, i, to);
    case ElementType::kUint8: return expect_element<Plain<std::uint8_t>>(reduction, sources, i, to);
    case ElementType::kInt8: return expect_element<Plain<std::int8_t>>(reduction, sources, i, to);
    case ElementType::kUint16: return expect_element<Plain<std::uint16_t>>(reduction, sources, i, to);
    case ElementType::kInt16: return expect_element<Plain<std::int16_t>>(reduction, sources, i, to);
    case ElementType::kUint32: return expect_element<Plain<std::uint32_t>>(reduction, sources, i, to);
    case ElementType::kInt32: return expect_element<Plain<std::int32_t>>(reduction, sources, i, to);
    case ElementType::kUint64: return expect_element<Plain<std::uint64_t>>(reduction, sources, i, to);
    case ElementType::kInt64: return expect_element<Plain<std::int64_t>>(reduction, sources, i, to);
    case ElementType::kFloat16: return expect_element<Float16>(reduction, sources, i, to);
    case ElementType::kBfloat16: return expect_element<Bfloat16>(reduction, sources, i, to);
    case ElementType::kFloat32: return expect_element<Plain<float>>(reduction, sources, i, to);
    case ElementType::kFloat64: return expect_element<Plain<double>>(reduction, sources, i, to);
    case ElementType::kComplex64: return expect_complex<float>(reduction, sources, i, to);
    case ElementType::kComplex128: return expect_complex<double>(reduction, sources, i, to);
    case ElementType::kOpaque8: break;
  }
  FAIL() << "no such reduction";
}

// At an odd place, as the sources. One source that is not divided is a copy, bit for bit, but for bool.
std::vector<std::byte> expected(const Reduction& reduction, const Sources& sources, std::int64_t count) {
  if (sources.bytes.size() == 1 && reduction.divisor == 1 && reduction.type != ElementType::kBool) {
    return sources.bytes[0];
  }
  const auto size = static_cast<std::size_t>(size_bytes(reduction.type));
  std::vector<std::byte> result(1 + size * static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    expect_one(reduction, sources, i, result.data() + 1 + static_cast<std::size_t>(i) * size);
  }
  return result;
}

// ---- samples ----

constexpr ElementType kFloating[] = {ElementType::kFloat16, ElementType::kBfloat16,  ElementType::kFloat32,
                                     ElementType::kFloat64, ElementType::kComplex64, ElementType::kComplex128};

bool is_floating(ElementType type) { return std::ranges::find(kFloating, type) != std::end(kFloating); }

void put_number(ElementType type, double number, std::byte* to) {
  switch (type) {
    case ElementType::kFloat16: return Float16::encode(static_cast<float>(number), to);
    case ElementType::kBfloat16: return Bfloat16::encode(static_cast<float>(number), to);
    case ElementType::kFloat32:
    case ElementType::kComplex64: return Plain<float>::encode(static_cast<float>(number), to);
    default: return Plain<double>::encode(number, to);
  }
}

// Any bits, and for floating types mostly numbers whose sums and products round, with what is special now and then.
void put_sample(Random& random, ElementType type, std::size_t part, std::byte* to) {
  const std::uint64_t bits = random.next();
  std::memcpy(to, &bits, part);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0,  -0.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(),
                                 6e-8, 65504};
  if (is_floating(type) && random.below(4) != 0) {
    const double number = static_cast<double>(random.below(2'000'001)) / 1e5 - 10;
    put_number(type, random.below(8) == 0 ? kSpecial[random.below(std::size(kSpecial))] : number, to);
  } else if (type == ElementType::kBool && random.below(2) == 0) {
    *to = std::byte{0};
  }
}

Sources samples(ElementType type, std::size_t sources, std::int64_t count) {
  Random random(static_cast<std::uint64_t>(count) * 31 + sources);
  const bool complex = type == ElementType::kComplex64 || type == ElementType::kComplex128;
  const auto size = static_cast<std::size_t>(size_bytes(type));
  const std::size_t part = complex ? size / 2 : size;
  Sources all;
  for (std::size_t source = 0; source < sources; ++source) {
    std::vector<std::byte>& bytes = all.bytes.emplace_back(1 + size * static_cast<std::size_t>(count));
    for (std::size_t at = 1; at < bytes.size(); at += part) {
      put_sample(random, type, part, bytes.data() + at);
    }
  }
  return all;
}

template <typename Body>
void for_each_pair(const Body& body) {
  for (int type = 1; type <= static_cast<int>(kLastElementType); ++type) {
    for (int op = 1; op <= static_cast<int>(kLastReduceOp); ++op) {
      if (is_supported(static_cast<ElementType>(type), static_cast<ReduceOp>(op))) {
        body(static_cast<ElementType>(type), static_cast<ReduceOp>(op));
      }
    }
  }
}

Reduction reduction_of(ElementType type, ReduceOp op, std::size_t sources) {
  return {type, op, op == ReduceOp::kAverage ? static_cast<std::int32_t>(sources) : 1};
}

std::string text(const Reduction& reduction, std::size_t sources, std::int64_t count) {
  return concat(name(reduction.op), " of ", name(reduction.type), ", ", sources, " sources, ", count, " elements");
}

void compare(ElementType type, ReduceOp op, std::size_t number, std::int64_t count, std::string_view where = "") {
  const Sources sources = samples(type, number, count);
  const Reduction reduction = reduction_of(type, op, number);
  std::vector<std::byte> target(sources.bytes[0].size() + 1, std::byte{0x5A});
  const std::vector<const void*> pointers = sources.pointers();
  reduce(reduction, target.data() + 1, pointers, count);
  std::vector<std::byte> wanted = expected(reduction, sources, count);
  wanted.front() = target.front();
  wanted.push_back(std::byte{0x5A});  // nothing is written behind the end
  ASSERT_TRUE(target == wanted) << text(reduction, number, count) << " " << where;
}

// The blocks hold 2 KiB of values: 2048 of the smallest type, 128 of the largest.
constexpr std::int64_t kCounts[] = {0,   1,   2,   7,    31,   97,   127,  128,  129, 256,
                                    511, 512, 513, 1024, 1025, 2047, 2048, 2049, 4099};

TEST(Reduce, every_pair_with_any_count_and_number_of_sources) {
  for_each_pair([](ElementType type, ReduceOp op) {
    for (const std::int64_t count : kCounts) {
      compare(type, op, 2, count);
    }
    for (std::size_t sources = 1; sources <= 5; ++sources) {
      compare(type, op, sources, 127);
      compare(type, op, sources, 1031);
    }
  });
}

TEST(Reduce, same_bits_on_every_instruction_set) {
  for_each_target([](bool, const char* target) {
    for_each_pair([&](ElementType type, ReduceOp op) {
      for (const std::size_t sources : {1u, 2u, 3u}) {
        compare(type, op, sources, 1, target);
        compare(type, op, sources, 521, target);
      }
    });
  });
}

TEST(Reduce, target_may_be_any_source) {
  for_each_pair([](ElementType type, ReduceOp op) {
    for (std::size_t number = 1; number <= 4; ++number) {
      for (std::size_t own = 0; own < number; ++own) {
        Sources sources = samples(type, number, 1031);
        const Reduction reduction = reduction_of(type, op, number);
        const std::vector<std::byte> wanted = expected(reduction, sources, 1031);
        const std::vector<const void*> pointers = sources.pointers();
        reduce(reduction, sources.bytes[own].data() + 1, pointers, 1031);
        ASSERT_TRUE(sources.bytes[own] == wanted) << text(reduction, number, 1031) << " into source " << own;
      }
    }
  });
}

TEST(Reduce, all_targets_get_it_even_if_all_are_sources) {
  for_each_pair([](ElementType type, ReduceOp op) {
    Sources sources = samples(type, 3, 1031);
    const Reduction reduction = reduction_of(type, op, 3);
    const std::vector<std::byte> wanted = expected(reduction, sources, 1031);
    std::vector<std::byte> other(wanted.size());
    std::vector<void*> targets{other.data() + 1};
    for (auto& source : sources.bytes) {
      targets.push_back(source.data() + 1);
    }
    const std::vector<const void*> pointers = sources.pointers();
    reduce_to_all(reduction, targets, pointers, 1031);
    ASSERT_TRUE(other == wanted && sources.bytes == std::vector<std::vector<std::byte>>(3, wanted)) << name(type);
  });
}

TEST(Reduce, no_target_is_no_work) {
  const float value = 1;
  const void* const sources[] = {&value};
  EXPECT_NO_THROW(reduce_to_all({}, {}, sources, 1));
}

// ---- single facts, with the numbers in plain sight ----

template <typename T>
T reduced(const Reduction& reduction, const std::vector<T>& values) {
  std::vector<const void*> sources;
  for (const T& value : values) {
    sources.push_back(&value);
  }
  T target{};
  reduce(reduction, &target, sources, 1);
  return target;
}

TEST(Reduce, goes_in_the_order_of_the_sources) {
  const Reduction sum{ElementType::kFloat32, ReduceOp::kSum};
  EXPECT_EQ(reduced<float>(sum, {1e8f, 1.0f, -1e8f}), 0.0f);
  EXPECT_EQ(reduced<float>(sum, {1e8f, -1e8f, 1.0f}), 1.0f);
}

TEST(Reduce, integers_wrap_around) {
  using std::int16_t;
  EXPECT_EQ(reduced<std::int8_t>({ElementType::kInt8, ReduceOp::kSum}, {100, 100}), -56);
  EXPECT_EQ(reduced<std::uint8_t>({ElementType::kUint8, ReduceOp::kProduct}, {16, 17}), 16);
  EXPECT_EQ(reduced<int16_t>({ElementType::kInt16, ReduceOp::kProduct}, {300, 300}), 24464);
  EXPECT_EQ(reduced<std::uint16_t>({ElementType::kUint16, ReduceOp::kProduct}, {65535, 65535}), 1);
  EXPECT_EQ(reduced<std::int32_t>({ElementType::kInt32, ReduceOp::kProduct}, {65536, 65536}), 0);
  EXPECT_EQ(reduced<std::int64_t>({ElementType::kInt64, ReduceOp::kSum}, {INT64_MAX, 1}), INT64_MIN);
  EXPECT_EQ(reduced<std::int64_t>({ElementType::kInt64, ReduceOp::kProduct}, {INT64_MIN, -1}), INT64_MIN);
}

TEST(Reduce, a_sign_counts_in_minimum_and_maximum) {
  EXPECT_EQ(reduced<std::int8_t>({ElementType::kInt8, ReduceOp::kMinimum}, {1, -1}), -1);
  EXPECT_EQ(reduced<std::uint8_t>({ElementType::kUint8, ReduceOp::kMinimum}, {1, 255}), 1);
  EXPECT_EQ(reduced<std::int64_t>({ElementType::kInt64, ReduceOp::kMaximum}, {1, -1}), 1);
  EXPECT_EQ(reduced<std::uint64_t>({ElementType::kUint64, ReduceOp::kMaximum}, {1, UINT64_MAX}), UINT64_MAX);
}

TEST(Reduce, a_nan_wins_wherever_it_stands) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const ReduceOp op : {ReduceOp::kMinimum, ReduceOp::kMaximum, ReduceOp::kSum, ReduceOp::kProduct}) {
    const Reduction reduction{ElementType::kFloat32, op};
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, {nan, -infinity, 1.0f})));
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, {1.0f, infinity, nan})));
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, {-infinity, nan, infinity})));
  }
}

TEST(Reduce, every_nan_is_the_same_one) {
  const auto negative = std::bit_cast<float>(0xFFC12345u);
  const auto signalling = std::bit_cast<float>(0x7F800001u);
  for (const float other : {negative, signalling, 1.0f}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(reduced<float>({}, {negative, other})), 0x7FC00000u);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(reduced<float>({}, {other, signalling})), 0x7FC00000u);
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(reduced<float>({}, {negative})), 0xFFC12345u) << "a copy";
}

TEST(Reduce, any_byte_but_zero_is_true) {
  const Reduction sum{ElementType::kBool, ReduceOp::kSum};
  EXPECT_EQ(reduced<std::uint8_t>(sum, {200}), 1);
  EXPECT_EQ(reduced<std::uint8_t>(sum, {0, 2}), 1);
  EXPECT_EQ(reduced<std::uint8_t>(sum, {0, 0}), 0);
  EXPECT_EQ(reduced<std::uint8_t>({ElementType::kBool, ReduceOp::kProduct}, {1, 2}), 1);
  EXPECT_EQ(reduced<std::uint8_t>({ElementType::kBool, ReduceOp::kBitAnd}, {4, 8}), 1);
  EXPECT_EQ(reduced<std::uint8_t>({ElementType::kBool, ReduceOp::kBitXor}, {4, 8}), 0);
}

// 65504 is float16's largest, 1 + 2^-10 its next after 1.
TEST(Reduce, float16_is_rounded_once_after_the_division) {
  const Reduction average{ElementType::kFloat16, ReduceOp::kAverage, 3};
  EXPECT_EQ(reduced<std::uint16_t>(average, {0x7BFF, 0x7BFF, 0x7BFF}), 0x7BFF);
  EXPECT_EQ(reduced<std::uint16_t>({ElementType::kFloat16, ReduceOp::kAverage, 2}, {0x3C00, 0x3C01}), 0x3C00) << "even";
  EXPECT_EQ(reduced<std::uint16_t>({ElementType::kFloat16, ReduceOp::kAverage, 2}, {0x3C01, 0x3C02}), 0x3C02) << "even";
  EXPECT_EQ(reduced<std::uint16_t>({ElementType::kFloat16, ReduceOp::kSum}, {0x7BFF, 0x7BFF}), 0x7C00) << "infinity";
}

TEST(Reduce, an_average_in_part_is_the_sum) {
  EXPECT_EQ(reduced<double>({ElementType::kFloat64, ReduceOp::kAverage}, {1.0, 2.0}), 3.0);
  EXPECT_EQ(reduced<double>({ElementType::kFloat64, ReduceOp::kAverage, 3}, {1.0}), 1.0 / 3.0);
}

TEST(Reduce, complex_numbers_are_multiplied_as_in_the_textbook) {
  struct Complex {
    double re, im;
  };
  const Complex product = reduced<Complex>({ElementType::kComplex128, ReduceOp::kProduct}, {{1, 2}, {3, 4}});
  EXPECT_EQ(product.re, -5);
  EXPECT_EQ(product.im, 10);
  const Complex average = reduced<Complex>({ElementType::kComplex128, ReduceOp::kAverage, 4}, {{1, 2}, {3, 4}});
  EXPECT_EQ(average.re, 1);
  EXPECT_EQ(average.im, 1.5);
}

// ---- the 16-bit formats, all of them ----

// All bit patterns, from `first` on and around.
std::vector<std::uint16_t> all_patterns(std::uint16_t first) {
  std::vector<std::uint16_t> all(65536);
  for (std::uint16_t& pattern : all) {
    pattern = first++;
  }
  return all;
}

template <class Format>
void compare_all_patterns(const Reduction& reduction, const std::vector<std::uint16_t>& a,
                          const std::vector<std::uint16_t>& b, const char* where) {
  const void* const sources[] = {a.data(), b.data()};
  std::vector<std::uint16_t> result(a.size());
  reduce(reduction, result.data(), sources, static_cast<std::int64_t>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = Format::decode(reinterpret_cast<const std::byte*>(&a[i]));
    const double y = Format::decode(reinterpret_cast<const std::byte*>(&b[i]));
    // float32 of the exact double: rounded as by an addition or multiplication in float32.
    const auto value = static_cast<float>(reduction.op == ReduceOp::kProduct ? x * y : x + y);
    std::uint16_t wanted = 0;
    Format::encode(value / static_cast<float>(reduction.divisor), reinterpret_cast<std::byte*>(&wanted));
    ASSERT_EQ(result[i], wanted) << std::hex << a[i] << " " << name(reduction.op) << " " << b[i] << " " << where;
  }
}

template <class Format>
void compare_all_patterns(ElementType type) {
  for_each_target([&](bool, const char* target) {
    const std::vector<std::uint16_t> all = all_patterns(0);
    const std::vector<std::uint16_t> minus_zero(all.size(), 0x8000);
    compare_all_patterns<Format>({type, ReduceOp::kSum}, all, minus_zero, target);  // each becomes itself
    // The mean of neighbours lies in the middle between them.
    compare_all_patterns<Format>({type, ReduceOp::kAverage, 2}, all, all_patterns(1), target);
    compare_all_patterns<Format>({type, ReduceOp::kSum}, all, all_patterns(0x1357), target);
    compare_all_patterns<Format>({type, ReduceOp::kAverage, 7}, all, all_patterns(0x8421), target);
    compare_all_patterns<Format>({type, ReduceOp::kProduct}, all, all_patterns(0x2468), target);
  });
}

TEST(Reduce, every_float16) { compare_all_patterns<Float16>(ElementType::kFloat16); }
TEST(Reduce, every_bfloat16) { compare_all_patterns<Bfloat16>(ElementType::kBfloat16); }

TEST(Reduce, the_expected_16_bit_formats_are_right_themselves) {
  for (const std::uint16_t pattern : all_patterns(0)) {
    std::uint16_t again = 0;
    Bfloat16::encode(std::bit_cast<float>(std::uint32_t{pattern} << 16), reinterpret_cast<std::byte*>(&again));
    ASSERT_TRUE(again == pattern || (pattern & 0x7FFF) > 0x7F80) << pattern;
    Float16::encode(Float16::decode(reinterpret_cast<const std::byte*>(&pattern)),
                    reinterpret_cast<std::byte*>(&again));
    ASSERT_TRUE(again == pattern || (pattern & 0x7FFF) > 0x7C00) << pattern;
  }
  const std::uint16_t known[] = {0x0001, 0x3C00, 0x7BFF, 0xC500};  // after the standard
  const float values[] = {0x1p-24f, 1, 65504, -5};
  for (std::size_t i = 0; i < std::size(known); ++i) {
    EXPECT_EQ(Float16::decode(reinterpret_cast<const std::byte*>(&known[i])), values[i]);
  }
}

// ---- what is refused ----

TEST(Reduce, an_unsupported_pair_changes_nothing) {
  const std::int64_t value = 7;
  std::int64_t target = 3;
  const void* const sources[] = {&value, &value};
  EXPECT_THAT(
      [&] {
        reduce({ElementType::kInt64, ReduceOp::kAverage, 2}, &target, sources, 1);
      },
      ThrowsMessage<Error>(HasSubstr("there is no avg of long")));
  EXPECT_THAT(
      [&] {
        reduce({ElementType::kOpaque8, ReduceOp::kSum}, &target, sources, 8);
      },
      ThrowsMessage<Error>(HasSubstr("there is no sum of bytes")));
  EXPECT_EQ(target, 3);
}

TEST(Reduce, a_call_without_sense_is_our_own_mistake) {
  const float value = 7;
  float target = 3;
  const void* const sources[] = {&value};
  EXPECT_THROW(reduce({}, &target, {}, 1), InternalError);
  EXPECT_THROW(reduce({}, &target, sources, -1), InternalError);
  EXPECT_THROW(reduce({ElementType::kFloat32, ReduceOp::kAverage, 0}, &target, sources, 1), InternalError);
  EXPECT_THROW(reduce({ElementType::kFloat32, ReduceOp::kSum, 2}, &target, sources, 1), InternalError);
  EXPECT_EQ(target, 3);
}

}  // namespace
}  // namespace downpour::collective
