#include "csrc/launch/tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
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

// ---- what of it tells something -------------------------------------------------------------------------------------------

TEST(Digest, LeavesTheFramesOfAStackOut) {
  std::vector<std::string> lines = {"loading", "terminate called after throwing an instance of 'c10::Error'",
                                    "  what():  worker 1: the job was ended",
                                    "Exception raised from raise at member.cpp:17 (most recent call first):"};
  for (int frame = 0; frame < 60; ++frame) {
    lines.push_back(concat("frame #", frame, ": <unknown function> + 0x27305 (0x7f1c in /lib/libc.so.6)"));
  }
  lines.emplace_back();
  EXPECT_THAT(digest_of(lines, 2), ElementsAre("terminate called after throwing an instance of 'c10::Error'",
                                               "  what():  worker 1: the job was ended"));
}

TEST(Digest, LeavesNothingElseOut) {
  const std::vector<std::string> lines = {"frame #1",          "frame #: x",   "a frame #1: x",  "frame #1x: y",
                                          "Exception raised!", "frames #1: x", "frame # 1: text"};
  EXPECT_THAT(digest_of(lines, 10), ElementsAreArray(lines));
  EXPECT_THAT(digest_of(lines, 2), ElementsAre("frames #1: x", "frame # 1: text"));
}

TEST(Digest, OfNothingButFramesItKeepsThem) {
  EXPECT_THAT(digest_of({"frame #1: a", "frame #2: b"}, 1), ElementsAre("frame #2: b"));
  EXPECT_THAT(digest_of({}, 1), IsEmpty());
}

}  // namespace
}  // namespace downpour::launch
