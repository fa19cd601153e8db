#include "csrc/base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace downpour {
namespace {

// The same on every machine and in every release: data orders and tests hang on it.
TEST(Random, is_splitmix64) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
}

TEST(Random, below_is_even_and_in_range) {
  Random random(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 70'000; ++i) {
    ++seen.at(random.below(7));
  }
  for (const int count : seen) {
    EXPECT_NEAR(count, 10'000, 500);
  }
  EXPECT_EQ(random.below(1), 0u);
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_LT(random.below(most), most);
}

TEST(Random, permutation_has_every_index_once) {
  for (const std::int64_t size : {0, 1, 2, 10, 1000}) {
    std::vector<std::int64_t> order = permutation(size, 5);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, expected);
  }
}

TEST(Random, permutation_is_decided_by_the_seed) {
  EXPECT_EQ(permutation(100, 1), permutation(100, 1));
  EXPECT_NE(permutation(100, 1), permutation(100, 2));
}

TEST(Random, the_systems_numbers_differ) { EXPECT_NE(system_random(), system_random()); }

}  // namespace
}  // namespace downpour
