#include "csrc/launch/selection.h"

#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

TEST(Selection, ListsMixRanksAndRoles) {
  const auto chosen = Selection::parse("0,4-6,server:1,worker:9");
  EXPECT_TRUE(chosen.contains(worker(0)));
  EXPECT_TRUE(chosen.contains(worker(5)));
  EXPECT_TRUE(chosen.contains(worker(9)));
  EXPECT_TRUE(chosen.contains(server(1)));
  EXPECT_FALSE(chosen.contains(worker(1)));
  EXPECT_FALSE(chosen.contains(worker(7)));
  EXPECT_FALSE(chosen.contains(server(0)));
}

TEST(Selection, RolesCoverEveryIndex) {
  EXPECT_TRUE(Selection::parse("workers").contains(worker(77)));
  EXPECT_FALSE(Selection::parse("workers").contains(server(0)));
  EXPECT_TRUE(Selection::parse("servers").contains(server(3)));
  EXPECT_EQ(Selection::parse("all"), Selection::all());
  EXPECT_EQ(Selection::parse("none"), Selection::none());
}

TEST(Selection, NamesWhatItDoesNotUnderstand) {
  for (const char* text : {"", "ranks", "3-1", "-1", "1-", "server:", "worker:x", "0,,1", "99999999999"}) {
    EXPECT_THROW(Selection::parse(text), Error) << text;
  }
  try {
    Selection::parse("0,sever:1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'sever:1'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace downpour::launch
