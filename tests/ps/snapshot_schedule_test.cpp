#include "csrc/ps/snapshot_schedule.h"

#include <gtest/gtest.h>

namespace downpour::ps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(1000)};

SnapshotOptions options() {
  SnapshotOptions options;
  options.interval = seconds(30);
  options.largest_duty = 0.1;
  return options;
}

TEST(SnapshotSchedule, NothingIsDueBeforeSomethingChanged) {
  SnapshotSchedule schedule(options(), kStart);
  EXPECT_EQ(schedule.due(), std::nullopt);
  schedule.changed();
  EXPECT_EQ(schedule.due(), kStart + seconds(30));
  schedule.started(kStart + seconds(30));
  EXPECT_EQ(schedule.due(), std::nullopt);
}

TEST(SnapshotSchedule, HurryKeepsTheDuty) {
  SnapshotSchedule schedule(options(), kStart);
  schedule.hurry();
  EXPECT_EQ(schedule.due(), kStart);
  schedule.started(kStart);
  schedule.hurry();
  schedule.ended(kStart + seconds(1), true);
  EXPECT_EQ(schedule.due(), kStart + seconds(10));  // one second in ten
  schedule.started(kStart + seconds(10));
  schedule.ended(kStart + seconds(10) + milliseconds(100), true);
  schedule.changed();
  EXPECT_EQ(schedule.due(), kStart + seconds(40));
}

TEST(SnapshotSchedule, ADemandWaitsForNothing) {
  SnapshotSchedule schedule(options(), kStart);
  schedule.started(kStart);
  schedule.ended(kStart + seconds(5), true);
  schedule.demand();
  EXPECT_LE(schedule.due(), kStart);
  schedule.started(kStart + seconds(5));
  schedule.demand();  // in the midst of one
  schedule.ended(kStart + seconds(6), true);
  EXPECT_LE(schedule.due(), kStart);
}

TEST(SnapshotSchedule, AFailedOneIsTriedAgainAtTheNextTrigger) {
  SnapshotSchedule schedule(options(), kStart);
  schedule.hurry();
  schedule.started(kStart);
  schedule.ended(kStart + milliseconds(1), false);
  EXPECT_EQ(schedule.due(), kStart + seconds(30));
}

}  // namespace
}  // namespace downpour::ps
