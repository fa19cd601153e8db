#include "csrc/launch/variables.h"

#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

TEST(Variables, ProgramsAreFoundAsTheShellFindsThem) {
  const Variables variables(std::vector<std::string>{"PATH=/nowhere:/bin"});
  EXPECT_EQ(find_program("sh", variables), "/bin/sh");
  EXPECT_EQ(find_program("/bin/sh", variables), "/bin/sh");
  EXPECT_EQ(find_program("no-such-program", variables), std::nullopt);
  EXPECT_EQ(find_program("/etc/passwd", variables), std::nullopt) << "not executable";
  EXPECT_EQ(find_program("/bin", variables), std::nullopt) << "a folder";
  EXPECT_EQ(find_program("", variables), std::nullopt);
}

}  // namespace
}  // namespace downpour::launch
