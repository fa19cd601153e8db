#include "csrc/launch/tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Tail, KeepsTheLastLinesOldestFirst) {
  Tail tail;
  tail.add("one\ntwo\nthr");
  tail.add("ee\nfour");
  EXPECT_THAT(tail.lines(3), ElementsAre("two", "three", "four"));
  EXPECT_THAT(tail.lines(50), ElementsAre("one", "two", "three", "four"));
}

TEST(Tail, AnEmptyStreamHasNoLines) {
  EXPECT_THAT(Tail().lines(5), IsEmpty());
  Tail tail;
  tail.add("\n");
  EXPECT_THAT(tail.lines(5), ElementsAre(""));
}

TEST(Tail, ForgetsTheBeginningAndTheLineThatItCut) {
  Tail tail(16);
  for (int i = 10; i < 60; ++i) {
    tail.add("line" + std::to_string(i) + "\n");
  }
  const auto lines = tail.lines(50);
  ASSERT_FALSE(lines.empty());
  EXPECT_LE(lines.size(), 4u);
  EXPECT_EQ(lines.back(), "line59");
  for (const auto& line : lines) {
    EXPECT_EQ(line.size(), 6u) << line;
  }
}

TEST(Tail, OfOneEndlessLineItKeepsTheEnd) {
  Tail tail(8);
  tail.add("0123456789abcdef");
  EXPECT_THAT(tail.lines(5), ElementsAre("89abcdef"));
}

}  // namespace
}  // namespace downpour::launch
