#include "csrc/ps/gradient_check.h"

#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "csrc/ps/gradient_check.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace downpour::ps {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<double>;
using WideVector = hn::Vec<Wide>;

// How elements reach the destination. Streamed past the caches they need not be read into one first, and leave to what is
// read next the room that they will not use.
enum class Copy { kNone, kStored, kStreamed };

// As many elements as a vector of doubles has, read, copied where there is a destination, and widened.
template <Copy kCopy, typename T>
HWY_INLINE WideVector take(Wide wide, const T* from, T* to, std::int64_t i) {
  const hn::Rebind<T, Wide> narrow;
  const auto elements = hn::LoadU(narrow, from + i);
  if constexpr (kCopy == Copy::kStored) {
    hn::StoreU(elements, narrow, to + i);
  } else if constexpr (kCopy == Copy::kStreamed) {
    hn::Stream(elements, narrow, to + i);
  }
  if constexpr (sizeof(T) == sizeof(double)) {
    return elements;
  } else {
    return hn::PromoteTo(wide, elements);
  }
}

// Squares of float32 stay finite in double however many are added (2^256 times 2^63), so their sum is finite exactly
// when every element is. Float64 needs a witness of its own: 0 * x is 0 for a finite x, else NaN.
template <typename T>
struct Sums {
  static constexpr bool kWitness = sizeof(T) == sizeof(double);
  WideVector squares;
  WideVector witness;

  explicit HWY_INLINE Sums(Wide wide) : squares(hn::Zero(wide)), witness(hn::Zero(wide)) {}
  HWY_INLINE void add(Wide wide, WideVector x) {
    squares = hn::MulAdd(x, x, squares);
    if constexpr (kWitness) {
      witness = hn::MulAdd(x, hn::Zero(wide), witness);
    }
  }
  HWY_INLINE void add(const Sums& other) {
    squares = hn::Add(squares, other.squares);
    witness = hn::Add(witness, other.witness);
  }
  HWY_INLINE GradientCheck result(Wide wide) const {
    const double sum = hn::GetLane(hn::SumOfLanes(wide, squares));
    const double seen = kWitness ? hn::GetLane(hn::SumOfLanes(wide, witness)) : sum;
    return {std::isfinite(seen), sum};
  }
};

template <typename T>
void add_scalar(GradientCheck& check, T element) {
  const double x = element;
  check.finite = check.finite && std::isfinite(x);
  check.squared_norm += x * x;
}

// Four independent sums hide the latency of the fused multiply-add.
template <Copy kCopy, typename T>
GradientCheck pass(std::int64_t count, const T* from, T* to) {
  const Wide wide;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(wide));
  Sums<T> a(wide), b(wide), c(wide), e(wide);
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a.add(wide, take<kCopy>(wide, from, to, i));
    b.add(wide, take<kCopy>(wide, from, to, i + lanes));
    c.add(wide, take<kCopy>(wide, from, to, i + 2 * lanes));
    e.add(wide, take<kCopy>(wide, from, to, i + 3 * lanes));
  }
  a.add(b);
  c.add(e);
  a.add(c);
  if constexpr (kCopy == Copy::kStreamed) {
    hwy::FlushStream();
  }
  GradientCheck check = a.result(wide);
  for (; i < count; ++i) {
    if constexpr (kCopy != Copy::kNone) {
      to[i] = from[i];
    }
    add_scalar(check, from[i]);
  }
  return check;
}

// What a second-level cache hardly holds.
constexpr std::int64_t kStreamedBytes = 256 * 1024;
constexpr std::uintptr_t kLine = 64;  // a multiple of every vector's size

template <typename T>
GradientCheck copy_pass(std::int64_t count, const T* from, T* to) {
  // Half a register cannot be streamed: two floats, where a register holds two doubles.
  constexpr bool kWholeRegisters = HWY_MAX_BYTES / sizeof(double) * sizeof(T) >= 16;
  const bool whole_lines = reinterpret_cast<std::uintptr_t>(to) % kLine == 0;
  const bool large = count >= kStreamedBytes / static_cast<std::int64_t>(sizeof(T));
  if constexpr (kWholeRegisters) {
    if (whole_lines && large) {
      return pass<Copy::kStreamed>(count, from, to);
    }
  }
  return pass<Copy::kStored>(count, from, to);
}

GradientCheck check_float32(std::int64_t count, const void* from) {
  return pass<Copy::kNone, float>(count, static_cast<const float*>(from), nullptr);
}
GradientCheck check_float64(std::int64_t count, const void* from) {
  return pass<Copy::kNone, double>(count, static_cast<const double*>(from), nullptr);
}
GradientCheck copy_float32(std::int64_t count, const void* from, void* to) {
  return copy_pass(count, static_cast<const float*>(from), static_cast<float*>(to));
}
GradientCheck copy_float64(std::int64_t count, const void* from, void* to) {
  return copy_pass(count, static_cast<const double*>(from), static_cast<double*>(to));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace downpour::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace downpour::ps {
namespace {

HWY_EXPORT(check_float32);
HWY_EXPORT(check_float64);
HWY_EXPORT(copy_float32);
HWY_EXPORT(copy_float64);

}  // namespace

GradientCheck check_gradient(Dtype dtype, std::int64_t count, const void* gradient) {
  return dtype == Dtype::kFloat64 ? HWY_DYNAMIC_DISPATCH(check_float64)(count, gradient)
                                  : HWY_DYNAMIC_DISPATCH(check_float32)(count, gradient);
}

GradientCheck copy_and_check(Dtype dtype, std::int64_t count, const void* source, void* destination) {
  return dtype == Dtype::kFloat64 ? HWY_DYNAMIC_DISPATCH(copy_float64)(count, source, destination)
                                  : HWY_DYNAMIC_DISPATCH(copy_float32)(count, source, destination);
}

}  // namespace downpour::ps
#endif  // HWY_ONCE
