#include "csrc/collective/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

// foreach_target includes this file once per instruction set; everything between the HWY_*_NAMESPACE marks exists once
// for each of them, the rest once. The loops there are plain: the compiler makes vectors of them, per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "csrc/collective/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef DOWNPOUR_COLLECTIVE_REDUCE_ONCE
#define DOWNPOUR_COLLECTIVE_REDUCE_ONCE

namespace downpour::collective {
namespace {

using Fold = void(std::int64_t count, const std::byte* a, const std::byte* b, std::byte* result);
using Divide = void(std::int64_t count, std::int32_t divisor, const std::byte* values, std::byte* result);
using Convert = void(std::int64_t count, const std::byte* from, std::byte* to);

// The loops of one (type, op), over `count` values at any alignment; the result overlaps nothing. A value is what is
// computed with: an element, a part of one, or a wider form of one.
struct Kernel {
  std::int64_t element_bytes = 1;
  std::int64_t value_bytes = 1;
  std::int64_t values_per_element = 1;
  Convert* widen = nullptr;  // null, as for the others: elements are values as they lie
  Fold* fold = nullptr;
  Divide* divide = nullptr;
  Convert* narrow = nullptr;
  Fold* pair = nullptr;  // all of it for two sources and no division, the usual case, where that is faster
};

}  // namespace
}  // namespace downpour::collective

#endif  // DOWNPOUR_COLLECTIVE_REDUCE_ONCE

HWY_BEFORE_NAMESPACE();
namespace downpour::collective {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
HWY_INLINE T load(const std::byte* values, std::int64_t i) {
  T value;
  std::memcpy(&value, values + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
HWY_INLINE void store(T value, std::byte* values, std::int64_t i) {
  std::memcpy(values + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Which NaN comes out of two, and with which sign one is born, differs between instruction sets and even between a
// loop's vectors and its tail: so every NaN becomes the same one.
template <typename T>
HWY_INLINE T with_one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

// Integers wrap around, which only unsigned ones may; 1u because narrow ones would be multiplied as int.
struct Sum {
  template <typename T>
  HWY_INLINE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    } else {
      return with_one_nan(a + b);
    }
  }
};

struct Product {
  template <typename T>
  HWY_INLINE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::make_unsigned_t<T>;
      return static_cast<T>(1u * static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    } else {
      return with_one_nan(a * b);
    }
  }
};

template <typename T>
HWY_INLINE T nan_if_either(T a, T b, T otherwise) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isunordered(a, b) ? std::numeric_limits<T>::quiet_NaN() : otherwise;
  } else {
    return otherwise;
  }
}

struct Minimum {
  template <typename T>
  HWY_INLINE T operator()(T a, T b) const {
    return nan_if_either(a, b, b < a ? b : a);
  }
};

struct Maximum {
  template <typename T>
  HWY_INLINE T operator()(T a, T b) const {
    return nan_if_either(a, b, a < b ? b : a);
  }
};

struct And {
  HWY_INLINE std::uint8_t operator()(std::uint8_t a, std::uint8_t b) const { return a & b; }
};
struct Or {
  HWY_INLINE std::uint8_t operator()(std::uint8_t a, std::uint8_t b) const { return a | b; }
};
struct Xor {
  HWY_INLINE std::uint8_t operator()(std::uint8_t a, std::uint8_t b) const { return a ^ b; }
};

template <typename T, class Op>
void fold(std::int64_t count, const std::byte* HWY_RESTRICT a, const std::byte* HWY_RESTRICT b,
          std::byte* HWY_RESTRICT result) {
  for (std::int64_t i = 0; i < count; ++i) {
    store(Op()(load<T>(a, i), load<T>(b, i)), result, i);
  }
}

// Without a minus for the compiler to see: g++ 12 makes a fused fmaddsub of the pair p * r - q * s, p * s + q * r,
// whatever -ffp-contract says.
template <typename T>
HWY_INLINE T negative(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<T>(std::bit_cast<Bits>(value) ^ (Bits{1} << (8 * sizeof(T) - 1)));
}

// (p + qi)(r + si); std::complex would repair infinities, one element at a time.
template <typename T>
void fold_complex_product(std::int64_t count, const std::byte* HWY_RESTRICT a, const std::byte* HWY_RESTRICT b,
                          std::byte* HWY_RESTRICT result) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T p = load<T>(a, 2 * i);
    const T q = load<T>(a, 2 * i + 1);
    const T r = load<T>(b, 2 * i);
    const T s = load<T>(b, 2 * i + 1);
    store(with_one_nan(p * r + negative(q * s)), result, 2 * i);
    store(with_one_nan(p * s + q * r), result, 2 * i + 1);
  }
}

template <typename T>
void divide(std::int64_t count, std::int32_t divisor, const std::byte* HWY_RESTRICT values,
            std::byte* HWY_RESTRICT result) {
  const T by = static_cast<T>(divisor);
  for (std::int64_t i = 0; i < count; ++i) {
    store(with_one_nan(load<T>(values, i) / by), result, i);
  }
}

void widen_bool(std::int64_t count, const std::byte* HWY_RESTRICT from, std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = from[i] != std::byte{0} ? std::byte{1} : std::byte{0};
  }
}

HWY_INLINE float widened_bfloat16(std::uint16_t element) { return std::bit_cast<float>(std::uint32_t{element} << 16); }

// To nearest even. The only NaN that fold and divide leave is one that rounding up does not turn into something else.
HWY_INLINE std::uint16_t narrowed_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

template <class Op>
struct OnBfloat16 {
  HWY_INLINE std::uint16_t operator()(std::uint16_t a, std::uint16_t b) const {
    return narrowed_bfloat16(Op()(widened_bfloat16(a), widened_bfloat16(b)));
  }
};

void widen_bfloat16(std::int64_t count, const std::byte* HWY_RESTRICT from, std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < count; ++i) {
    store(widened_bfloat16(load<std::uint16_t>(from, i)), to, i);
  }
}

void narrow_bfloat16(std::int64_t count, const std::byte* HWY_RESTRICT from, std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = 0; i < count; ++i) {
    store(narrowed_bfloat16(load<float>(from, i)), to, i);
  }
}

constexpr std::uint32_t kRebias = (127 - 15) << 23;  // between the exponents of float16 and float32

// With masks, because the compiler makes no vectors of the branches that it would make of conditions here.
HWY_INLINE std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - std::uint32_t{condition};
  return (yes & mask) | (no & ~mask);
}

// No step makes or takes a float32 below the normal ones, so that a thread that flushes those to zero gets the same.
HWY_INLINE float widened_float16(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFu;
  const float units = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const std::uint32_t normal = (magnitude << 13) + kRebias + select(magnitude >= 0x7C00u, kRebias, 0u);
  const std::uint32_t bits = select(magnitude < 0x0400u, std::bit_cast<std::uint32_t>(units), normal);
  return std::bit_cast<float>(bits | ((half & 0x8000u) << 16));
}

// To nearest even. Below the normal float16, adding 0.5 leaves exactly the bits that there are, rounded by the
// addition.
HWY_INLINE std::uint16_t narrowed_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const auto subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t normal = (magnitude - kRebias + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t beyond = select(magnitude > 0x7F800000u, 0x7E00u, 0x7C00u);
  const std::uint32_t half = select(magnitude >= 0x47800000u, beyond, normal);
  return static_cast<std::uint16_t>(select(magnitude < 0x38800000u, subnormal, half) | ((bits >> 16) & 0x8000u));
}

// Where x86 has instructions for float16, they convert the whole vectors. What Highway puts in their place elsewhere
// truncates.
#if HWY_ARCH_X86 && HWY_MAX_BYTES >= 32
HWY_INLINE std::int64_t widen_float16_vectors(std::int64_t count, const std::byte* from, std::byte* to) {
  const hn::ScalableTag<float> floats;
  const hn::Rebind<hwy::float16_t, decltype(floats)> halves;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(floats));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto half = hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from + 2 * i));
    hn::StoreU(hn::PromoteTo(floats, half), floats, reinterpret_cast<float*>(to + 4 * i));
  }
  return i;
}

HWY_INLINE std::int64_t narrow_float16_vectors(std::int64_t count, const std::byte* from, std::byte* to) {
  const hn::ScalableTag<float> floats;
  const hn::Rebind<hwy::float16_t, decltype(floats)> halves;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(floats));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(floats, reinterpret_cast<const float*>(from + 4 * i));
    hn::StoreU(hn::DemoteTo(halves, value), halves, reinterpret_cast<hwy::float16_t*>(to + 2 * i));
  }
  return i;
}
#else
HWY_INLINE std::int64_t widen_float16_vectors(std::int64_t, const std::byte*, std::byte*) { return 0; }
HWY_INLINE std::int64_t narrow_float16_vectors(std::int64_t, const std::byte*, std::byte*) { return 0; }
#endif

void widen_float16(std::int64_t count, const std::byte* HWY_RESTRICT from, std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = widen_float16_vectors(count, from, to); i < count; ++i) {
    store(widened_float16(load<std::uint16_t>(from, i)), to, i);
  }
}

void narrow_float16(std::int64_t count, const std::byte* HWY_RESTRICT from, std::byte* HWY_RESTRICT to) {
  for (std::int64_t i = narrow_float16_vectors(count, from, to); i < count; ++i) {
    store(narrowed_float16(load<float>(from, i)), to, i);
  }
}

template <class Op>
struct AsIs : Op {};

template <typename T, template <class> class On = AsIs>
Fold* arithmetic(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return fold<T, On<Sum>>;
    case ReduceOp::kProduct: return fold<T, On<Product>>;
    case ReduceOp::kMinimum: return fold<T, On<Minimum>>;
    case ReduceOp::kMaximum: return fold<T, On<Maximum>>;
    default: return nullptr;
  }
}

Fold* bitwise(ReduceOp op) {
  switch (op) {
    case ReduceOp::kBitAnd: return fold<std::uint8_t, And>;
    case ReduceOp::kBitOr: return fold<std::uint8_t, Or>;
    case ReduceOp::kBitXor: return fold<std::uint8_t, Xor>;
    default: return nullptr;
  }
}

Kernel bools(ReduceOp op) {
  Fold* fold = bitwise(op);
  if (op == ReduceOp::kSum || op == ReduceOp::kMaximum) {
    fold = bitwise(ReduceOp::kBitOr);
  } else if (op == ReduceOp::kProduct || op == ReduceOp::kMinimum) {
    fold = bitwise(ReduceOp::kBitAnd);
  }
  return {.widen = widen_bool, .fold = fold};
}

template <typename T>
Kernel integers(ReduceOp op) {
  if (Fold* fold = bitwise(op)) {
    return {.element_bytes = sizeof(T), .values_per_element = sizeof(T), .fold = fold};
  }
  return {.element_bytes = sizeof(T), .value_bytes = sizeof(T), .fold = arithmetic<T>(op)};
}

Kernel halves(ReduceOp op, Convert* widen, Convert* narrow, Fold* pair) {
  return {.element_bytes = 2,
          .value_bytes = sizeof(float),
          .widen = widen,
          .fold = arithmetic<float>(op),
          .divide = divide<float>,
          .narrow = narrow,
          .pair = pair};
}

template <typename T>
Kernel floats(ReduceOp op) {
  return {.element_bytes = sizeof(T), .value_bytes = sizeof(T), .fold = arithmetic<T>(op), .divide = divide<T>};
}

template <typename T>
Kernel complexes(ReduceOp op) {
  if (op == ReduceOp::kProduct) {
    return {.element_bytes = 2 * sizeof(T), .value_bytes = 2 * sizeof(T), .fold = fold_complex_product<T>};
  }
  Kernel kernel = floats<T>(op);
  kernel.element_bytes = 2 * sizeof(T);
  kernel.values_per_element = 2;
  return kernel;
}

Kernel kernel_of(ElementType type, ReduceOp op) {
  switch (type) {
    case ElementType::kBool: return bools(op);
    case ElementType::kUint8: return integers<std::uint8_t>(op);
    case ElementType::kInt8: return integers<std::int8_t>(op);
    case ElementType::kUint16: return integers<std::uint16_t>(op);
    case ElementType::kInt16: return integers<std::int16_t>(op);
    case ElementType::kUint32: return integers<std::uint32_t>(op);
    case ElementType::kInt32: return integers<std::int32_t>(op);
    case ElementType::kUint64: return integers<std::uint64_t>(op);
    case ElementType::kInt64: return integers<std::int64_t>(op);
    case ElementType::kFloat16: return halves(op, widen_float16, narrow_float16, nullptr);
    case ElementType::kBfloat16:
      return halves(op, widen_bfloat16, narrow_bfloat16, arithmetic<std::uint16_t, OnBfloat16>(op));
    case ElementType::kFloat32: return floats<float>(op);
    case ElementType::kFloat64: return floats<double>(op);
    case ElementType::kComplex64: return complexes<float>(op);
    case ElementType::kComplex128: return complexes<double>(op);
    case ElementType::kOpaque8: break;
  }
  return {};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace downpour::collective
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace downpour::collective {
namespace {

HWY_EXPORT(kernel_of);

// One source that is not divided is copied, bit for bit; only a bool has to become 0 or 1.
Kernel kernel_of_call(const Reduction& reduction, std::size_t sources) {
  if (sources == 1 && reduction.divisor == 1 && reduction.type != ElementType::kBool) {
    const std::int64_t bytes = size_bytes(reduction.type);
    return {.element_bytes = bytes, .value_bytes = bytes};
  }
  const Kernel kernel = HWY_DYNAMIC_DISPATCH(kernel_of)(reduction.type, reduction.op);
  if (sources == 2 && reduction.divisor == 1 && kernel.pair != nullptr) {
    return {.element_bytes = kernel.element_bytes, .value_bytes = kernel.element_bytes, .fold = kernel.pair};
  }
  return kernel;
}

// Reduces a block of elements within the first-level cache. Every step leaves its result in another place than it found
// its operands, and nothing is written to a target before all sources of the block have been read.
class Block {
 public:
  Block(const Reduction& reduction, std::span<const void* const> sources)
      : kernel_(kernel_of_call(reduction, sources.size())), divisor_(reduction.divisor), sources_(sources) {}

  std::int64_t element_bytes() const { return kernel_.element_bytes; }
  std::int64_t most_elements() const { return kBytes / (kernel_.value_bytes * kernel_.values_per_element); }

  // The elements [begin, begin + count) of the result. Valid until the next call.
  const std::byte* reduced(std::int64_t begin, std::int64_t count) {
    const std::int64_t values = count * kernel_.values_per_element;
    const std::byte* result = operand(0, begin, values, rooms_[0]);
    for (std::size_t source = 1; source < sources_.size(); ++source) {
      std::byte* const folded = free_room(result);
      kernel_.fold(values, result, operand(source, begin, values, operand_room_), folded);
      result = folded;
    }
    return finished(values, result);
  }

 private:
  // From 4 KiB on, memmove may choose instructions that are slow into memory which is in no cache yet.
  static constexpr std::int64_t kBytes = 2048;

  std::byte* free_room(const std::byte* taken) { return taken == rooms_[0] ? rooms_[1] : rooms_[0]; }

  const std::byte* operand(std::size_t source, std::int64_t begin, std::int64_t values, std::byte* room) const {
    const auto* const elements = static_cast<const std::byte*>(sources_[source]) + begin * kernel_.element_bytes;
    if (kernel_.widen == nullptr) {
      return elements;
    }
    kernel_.widen(values, elements, room);
    return room;
  }

  const std::byte* finished(std::int64_t values, const std::byte* result) {
    if (divisor_ != 1) {
      std::byte* const divided = free_room(result);
      kernel_.divide(values, divisor_, result, divided);
      result = divided;
    }
    if (kernel_.narrow != nullptr) {
      std::byte* const narrowed = free_room(result);
      kernel_.narrow(values, result, narrowed);
      result = narrowed;
    }
    return result;
  }

  const Kernel kernel_;
  const std::int32_t divisor_;
  const std::span<const void* const> sources_;
  alignas(64) std::byte rooms_[2][kBytes];
  alignas(64) std::byte operand_room_[kBytes];
};

}  // namespace

void reduce(const Reduction& reduction, void* target, std::span<const void* const> sources, std::int64_t count) {
  reduce_to_all(reduction, {&target, 1}, sources, count);
}

void reduce_to_all(const Reduction& reduction, std::span<void* const> targets, std::span<const void* const> sources,
                   std::int64_t count) {
  check_supported(reduction.type, reduction.op);
  DOWNPOUR_INTERNAL_ASSERT(!sources.empty() && count >= 0, sources.size(), " sources of ", count, " elements");
  DOWNPOUR_INTERNAL_ASSERT(reduction.divisor == 1 || (reduction.divisor > 1 && reduction.op == ReduceOp::kAverage),
                           name(reduction.op), " divided by ", reduction.divisor);
  Block block(reduction, sources);
  for (std::int64_t begin = 0; begin < count; begin += block.most_elements()) {
    const std::int64_t elements = std::min(block.most_elements(), count - begin);
    const std::byte* const result = block.reduced(begin, elements);
    for (void* const target : targets) {
      // One source may be a target itself.
      std::memmove(static_cast<std::byte*>(target) + begin * block.element_bytes(), result,
                   static_cast<std::size_t>(elements * block.element_bytes()));
    }
  }
}

}  // namespace downpour::collective
#endif  // HWY_ONCE
