#include "backends/bucket_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::backends {
namespace {

using testing::ElementsAre;
using Layout = std::vector<std::vector<std::size_t>>;

TEST(BucketLayout, TheFirstBucketIsSmallTheOthersFull) {
  const std::vector<GradientSize> sizes(7, {10, 0});
  EXPECT_EQ(lay_out_buckets(sizes, {6, 5, 4, 3, 2, 1, 0}, 10, 30), (Layout{{6}, {5, 4, 3}, {2, 1, 0}}));
}

TEST(BucketLayout, ALargeGradientHasABucketOfItsOwn) {
  const std::vector<GradientSize> sizes{{5, 0}, {1000, 0}, {5, 0}};
  EXPECT_EQ(lay_out_buckets(sizes, {2, 1, 0}, 10, 30), (Layout{{2}, {1}, {0}}));
  EXPECT_EQ(lay_out_buckets({{1000, 0}}, {0}, 10, 30), (Layout{{0}}));
}

TEST(BucketLayout, KindsDoNotMix) {
  const std::vector<GradientSize> sizes{{10, 0}, {10, 1}, {10, 0}, {10, 1}};
  EXPECT_EQ(lay_out_buckets(sizes, {3, 2, 1, 0}, 100, 100), (Layout{{2, 0}, {3, 1}}));
}

TEST(BucketLayout, GradientsOfNoBytesHaveAPlaceToo) {
  EXPECT_EQ(lay_out_buckets({{0, 0}, {0, 0}}, {0, 1}, 10, 10), (Layout{{0, 1}}));
  EXPECT_TRUE(lay_out_buckets({}, {}, 10, 10).empty());
}

}  // namespace
}  // namespace downpour::backends
