#include "csrc/ps/gradient_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "csrc/base/aligned_bytes.h"
#include "csrc/base/random.h"
#include "tests/support/targets.h"

namespace downpour::ps {
namespace {

template <typename T>
constexpr Dtype kDtype = sizeof(T) == 8 ? Dtype::kFloat64 : Dtype::kFloat32;

template <typename T>
GradientCheck check(const std::vector<T>& gradient) {
  std::vector<T> copy(gradient.size(), T{7});
  const auto count = static_cast<std::int64_t>(gradient.size());
  const GradientCheck checked = check_gradient(kDtype<T>, count, gradient.data());
  const GradientCheck copied = copy_and_check(kDtype<T>, count, gradient.data(), copy.data());
  EXPECT_EQ(checked.finite, copied.finite);
  if (checked.finite) {
    EXPECT_EQ(copy, gradient);
    EXPECT_EQ(checked.squared_norm, copied.squared_norm);
  }
  return checked;
}

template <typename T>
void check_sums() {
  Random random(5);
  for (std::size_t count = 0; count < 150; ++count) {
    std::vector<T> gradient(count);
    double expected = 0;
    for (T& g : gradient) {
      g = static_cast<T>(random.below(1000)) - 500;  // sums of their squares are exact in any order
      expected += static_cast<double>(g) * static_cast<double>(g);
    }
    const GradientCheck found = check(gradient);
    EXPECT_TRUE(found.finite);
    EXPECT_EQ(found.squared_norm, expected) << count << " elements";
  }
}

TEST(GradientCheck, sums_squares_whatever_the_size) {
  for_each_target([](bool, const char* target) {
    SCOPED_TRACE(target);
    check_sums<float>();
    check_sums<double>();
  });
}

template <typename T>
void check_bad_elements() {
  for (std::size_t count = 1; count < 80; ++count) {
    for (const T bad : {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(),
                        std::numeric_limits<T>::quiet_NaN()}) {
      for (std::size_t at = 0; at < count; ++at) {
        std::vector<T> gradient(count, T{1});
        gradient[at] = bad;
        ASSERT_FALSE(check(gradient).finite) << bad << " at " << at << " of " << count;
      }
    }
  }
}

TEST(GradientCheck, finds_a_bad_element_at_every_position) {
  for_each_target([](bool, const char* target) {
    SCOPED_TRACE(target);
    check_bad_elements<float>();
    check_bad_elements<double>();
  });
}

// Large enough to be streamed where the destination begins with a cache line.
template <typename T>
void check_large_copies() {
  constexpr std::size_t kCount = 70'003;
  const std::vector<T> gradient(kCount, T{2});
  std::vector<T, CacheLineAllocator<T>> copy(kCount + 2);
  for (const std::size_t offset : {0u, 1u}) {
    std::fill(copy.begin(), copy.end(), T{7});
    const GradientCheck found =
        copy_and_check(kDtype<T>, static_cast<std::int64_t>(kCount), gradient.data(), copy.data() + offset);
    EXPECT_EQ(found.squared_norm, 4.0 * kCount);
    EXPECT_TRUE(std::equal(gradient.begin(), gradient.end(), copy.begin() + static_cast<std::ptrdiff_t>(offset)));
    EXPECT_EQ(copy[offset + kCount], T{7});
  }
}

TEST(GradientCheck, copies_large_gradients_whole) {
  for_each_target([](bool, const char* target) {
    SCOPED_TRACE(target);
    check_large_copies<float>();
    check_large_copies<double>();
  });
}

TEST(GradientCheck, huge_elements_are_finite) {
  for_each_target([](bool, const char* target) {
    SCOPED_TRACE(target);
    const double most = static_cast<double>(std::numeric_limits<float>::max());
    const GradientCheck single = check(std::vector<float>(1000, std::numeric_limits<float>::max()));
    EXPECT_TRUE(single.finite);
    EXPECT_NEAR(single.squared_norm / (1000 * most * most), 1, 1e-12);
    EXPECT_TRUE(check(std::vector<double>(1000, std::numeric_limits<double>::max())).finite);
    EXPECT_TRUE(check(std::vector<double>(3, -std::numeric_limits<double>::max())).finite);
  });
}

TEST(GradientCheck, small_elements_are_not_lost) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const GradientCheck found = check(std::vector<float>(100, smallest));
  EXPECT_TRUE(found.finite);
  EXPECT_GT(found.squared_norm, 0);
}

}  // namespace
}  // namespace downpour::ps
