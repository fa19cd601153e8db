#include "csrc/collective/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::collective {
namespace {

using testing::ElementsAre;

// "11 01": rank 0 reaches both, rank 1 only itself.
Machines machines(const std::string& rows) {
  std::vector<std::vector<bool>> reached(1);
  for (const char digit : rows) {
    if (digit == ' ') {
      reached.emplace_back();
    } else {
      reached.back().push_back(digit == '1');
    }
  }
  return Machines(reached);
}

TEST(Machines, AllTogether) {
  const Machines one = machines("111 111 111");
  EXPECT_EQ(one.count(), 1);
  EXPECT_THAT(one.ranks(0), ElementsAre(0, 1, 2));
  EXPECT_EQ(one.leader(0), 0);
  EXPECT_EQ(one.member(2), 2);
  EXPECT_EQ(one.medium(), "shm");
}

TEST(Machines, AllApart) {
  const Machines three = machines("100 010 001");
  EXPECT_EQ(three.count(), 3);
  EXPECT_THAT(three.ranks(1), ElementsAre(1));
  EXPECT_EQ(three.leader(2), 2);
  EXPECT_EQ(three.member(2), 0);
  EXPECT_EQ(three.medium(), "tcp");
}

TEST(Machines, AMixtureKeepsTheOrderOfRanks) {
  const Machines two = machines("10101 01010 10101 01010 10101");
  EXPECT_EQ(two.count(), 2);
  EXPECT_THAT(two.ranks(0), ElementsAre(0, 2, 4));
  EXPECT_THAT(two.ranks(1), ElementsAre(1, 3));
  EXPECT_EQ(two.of(4), 0);
  EXPECT_EQ(two.of(3), 1);
  EXPECT_EQ(two.leader(1), 1);
  EXPECT_EQ(two.member(4), 2);
  EXPECT_EQ(two.medium(), "shm and tcp");
}

TEST(Machines, WhoIsReachedInOneDirectionOnlyStaysAlone) {
  const Machines two = machines("111 110 101");
  EXPECT_THAT(two.ranks(0), ElementsAre(0, 1)) << "0 and 1 reach each other, 2 and 1 do not";
  EXPECT_THAT(two.ranks(1), ElementsAre(2));
  const Machines apart = machines("11 01");
  EXPECT_EQ(apart.count(), 2);
  EXPECT_EQ(apart.medium(), "tcp");
}

TEST(Machines, ARankReachesItselfAlways) {
  const Machines alone = machines("0");
  EXPECT_EQ(alone.count(), 1);
  EXPECT_THAT(alone.ranks(0), ElementsAre(0));
}

}  // namespace
}  // namespace downpour::collective
