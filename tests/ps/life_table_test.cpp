#include "csrc/ps/life_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/transport/handshake.h"

namespace downpour::ps {
namespace {

TEST(LifeTable, TheNewestConnectionOfTheNewestLifeIsTheLiveOne) {
  LifeTable lives;
  EXPECT_FALSE(lives.enter(0, {1, 5}));
  EXPECT_TRUE(lives.is_live(0, {1, 5}));
  EXPECT_THAT(*lives.enter(0, {1, 4}), testing::StartsWith("a newer connection"));  // late
  EXPECT_FALSE(lives.enter(0, {1, 6}));
  EXPECT_FALSE(lives.is_live(0, {1, 5}));
  EXPECT_FALSE(lives.enter(0, {2, 1}));
  EXPECT_FALSE(lives.is_live(0, {1, 6}));
  EXPECT_THAT(*lives.enter(0, {1, 7}), testing::StartsWith(std::string(kFencedPrefix)));
  EXPECT_FALSE(lives.enter(1, {1, 1}));  // another worker is another matter
}

// The welcome was lost with the link: that one is not known yet, and another attempt will do.
TEST(LifeTable, AnAttemptThatKnocksAgainIsToMakeAnother) {
  LifeTable lives;
  EXPECT_FALSE(lives.enter(0, {1, 5}));
  EXPECT_THAT(*lives.enter(0, {1, 5}), testing::StartsWith(std::string(transport::kLaterPrefix)));
  EXPECT_FALSE(lives.enter(0, {1, 6}));
}

TEST(LifeTable, AFenceEndsLowerLives) {
  LifeTable lives;
  lives.enter(0, {1, 1});
  const std::uint64_t before = lives.changes();
  lives.fence({0, 1});
  EXPECT_TRUE(lives.is_live(0, {1, 1}));
  EXPECT_EQ(lives.changes(), before);
  lives.fence({0, 3});
  EXPECT_FALSE(lives.is_live(0, {1, 1}));
  EXPECT_GT(lives.changes(), before);
  EXPECT_TRUE(lives.enter(0, {2, 9}));
  EXPECT_FALSE(lives.enter(0, {3, 1}));
  lives.fence({0, 2});  // late: nothing
  EXPECT_TRUE(lives.is_live(0, {3, 1}));
}

}  // namespace
}  // namespace downpour::ps
