#include "csrc/base/text.h"

#include <gtest/gtest.h>

namespace downpour {
namespace {

TEST(Text, NumbersHaveTheDigitsAskedFor) {
  EXPECT_EQ(fixed(12.349, 1), "12.3");
  EXPECT_EQ(fixed(-0.5, 4), "-0.5000");
  EXPECT_EQ(hexadecimal(0xabc), "0000000000000abc");
  EXPECT_EQ(hexadecimal(UINT64_MAX), "ffffffffffffffff");
}

TEST(Text, ListsHaveCommasBetween) {
  EXPECT_EQ(join({}), "");
  EXPECT_EQ(join({"a"}), "a");
  EXPECT_EQ(join({"a", "b", "c"}), "a,b,c");
}

}  // namespace
}  // namespace downpour
