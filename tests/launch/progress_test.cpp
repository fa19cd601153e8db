#include "csrc/launch/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::map<int, WorkerScore> two_workers() {
  return {{0, {.step = 1234, .samples = 79000, .samples_per_second = 1523.4, .loss = 0.43121, .staleness = 1.24}},
          {11, {.step = 1200, .samples = 78000, .samples_per_second = 52.3, .loss = std::nullopt, .staleness = 0}}};
}

TEST(Progress, OneAlignedLineAWorker) {
  EXPECT_THAT(progress_lines(two_workers(), 16),
              ElementsAre("worker 0   step     1,234      1,523 samples/s  loss 0.4312  staleness 1.2",
                          "worker 11  step     1,200       52.3 samples/s  staleness 0.0"));
}

TEST(Progress, ManyWorkersEndInACount) {
  std::map<int, WorkerScore> many;
  for (int rank = 0; rank < 20; ++rank) {
    many[rank] = {};
  }
  const auto lines = progress_lines(many, 5);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines.back(), "... and 16 more workers");
}

TEST(Progress, TheLogLineSumsUp) {
  EXPECT_EQ(progress_line(two_workers()),
            "1,576 samples/s, steps 1,200 to 1,234, mean loss 0.4312, staleness 0.6 (2 workers)");
  EXPECT_THAT(progress_line({{0, {.step = 5, .loss = std::nullopt}}}), HasSubstr("step 5, staleness"));
  EXPECT_THAT(progress_line({{0, {.step = 5, .loss = std::nullopt}}}), Not(HasSubstr("loss")));
}

TEST(Progress, NumbersAreGrouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
}

TEST(Progress, BytesHaveUnits) {
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999'960'000), "1.0 GB");
  EXPECT_EQ(bytes_text(1'234'000'000'000), "1.2 TB");
}

}  // namespace
}  // namespace downpour::launch
