#include "csrc/launch/status_area.h"

#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

TEST(StatusArea, DrawsBelowAndErasesExactlyItsOwnLines) {
  StatusArea area;
  EXPECT_EQ(area.erase(), "");
  EXPECT_EQ(area.draw({"one", "two"}, 80), "one\ntwo\n");
  EXPECT_EQ(area.erase(), "\r\x1b[2A\x1b[J");
  EXPECT_EQ(area.erase(), "");
}

TEST(StatusArea, RedrawingReplacesInPlace) {
  StatusArea area;
  area.draw({"one", "two"}, 80);
  EXPECT_EQ(area.draw({"three"}, 80), "\r\x1b[2A\x1b[Jthree\n");
  EXPECT_EQ(area.draw({}, 80), "\r\x1b[1A\x1b[J");
  EXPECT_FALSE(area.drawn());
}

TEST(StatusArea, LinesNeverWrap) {
  StatusArea area;
  EXPECT_EQ(area.draw({"0123456789"}, 6), "01234\n");
}

}  // namespace
}  // namespace downpour::launch
