#include "csrc/ps/generation_file.h"

#include <gtest/gtest.h>

#include "tests/ps/fault_files.h"

namespace downpour::ps {
namespace {

TEST(GenerationFile, EveryLifeIsAboveTheOneBefore) {
  MemoryFiles files;
  EXPECT_EQ(begin_generation(files, "/run", {0, 2}, 0), 0u);
  EXPECT_EQ(begin_generation(files, "/run", {0, 2}, 0), 1u);
  EXPECT_EQ(begin_generation(files, "/run", {0, 2}, 1), 2u);
  EXPECT_EQ(begin_generation(files, "/run", {0, 2}, 9), 9u);
  files.lose_power();
  EXPECT_EQ(begin_generation(files, "/run", {0, 2}, 3), 10u);
  EXPECT_EQ(begin_generation(files, "/run", {1, 2}, 0), 0u);
}

TEST(GenerationFile, RubbishCountsAsNone) {
  for (const std::string_view text : {"", "x", "12x", "99999999999999999999999999", "-1"}) {
    MemoryFiles files;
    const Bytes bytes = as_bytes(text);
    files.put("/run/shard-0-of-1.generation", {bytes.begin(), bytes.end()});
    EXPECT_EQ(begin_generation(files, "/run", {0, 1}, 4), 4u) << text;
    EXPECT_EQ(begin_generation(files, "/run", {0, 1}, 0), 5u) << text;
  }
}

}  // namespace
}  // namespace downpour::ps
