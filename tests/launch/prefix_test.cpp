#include "csrc/launch/prefix.h"

#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

TEST(Prefix, FillsInEveryField) {
  const Prefix prefix("{time} {host} [{role}:{rank}/{rank}] ");
  EXPECT_EQ(prefix.of(server(3), "box").text("12:00:00"), "12:00:00 box [server:3/3] ");
  EXPECT_EQ(Prefix().of(worker(1), "box").text("12:00:00"), "");
}

TEST(Prefix, RefusesUnknownFieldsByName) {
  EXPECT_THROW(Prefix("{pid}"), Error);
  EXPECT_THROW(Prefix("{rank"), Error);
  try {
    Prefix("{rank} {thread}");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'{thread}'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace downpour::launch
