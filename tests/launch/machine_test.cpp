#include "csrc/launch/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "csrc/launch/run_folder.h"

namespace downpour::launch {
namespace {

class FolderTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_.path() / name) << text; }
  RunFolder folder_{"", ::testing::TempDir()};
};

using MemoryGroupTest = FolderTest;

TEST_F(MemoryGroupTest, ReadsVersion2) {
  write("memory.max", "1073741824\n");
  write("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n");
  const auto group = read_memory_group(folder_.path());
  ASSERT_TRUE(group);
  EXPECT_EQ(group->limit_bytes, 1073741824);
  EXPECT_EQ(group->out_of_memory_kills, 2);
}

TEST_F(MemoryGroupTest, ReadsVersion1) {
  write("memory.limit_in_bytes", "9223372036854771712\n");
  write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  const auto group = read_memory_group(folder_.path());
  ASSERT_TRUE(group);
  EXPECT_EQ(group->limit_bytes, std::nullopt);
  EXPECT_EQ(group->out_of_memory_kills, 5);
}

TEST_F(MemoryGroupTest, KnowsNoLimitAndNoGroup) {
  EXPECT_FALSE(read_memory_group(folder_.path()));
  write("memory.max", "max\n");
  EXPECT_EQ(read_memory_group(folder_.path())->limit_bytes, std::nullopt);
}

TEST(Machine, QuotasAreRoundedUp) {
  EXPECT_EQ(parse_cpu_quota("max 100000"), std::nullopt);
  EXPECT_EQ(parse_cpu_quota("150000 100000"), 2);
  EXPECT_EQ(parse_cpu_quota("50000 100000"), 1);
  EXPECT_EQ(parse_cpu_quota("-1 100000"), std::nullopt);
  EXPECT_EQ(parse_cpu_quota(""), std::nullopt);
}

TEST(Machine, HasACoreAndAName) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_FALSE(host_name().empty());
}

}  // namespace
}  // namespace downpour::launch
