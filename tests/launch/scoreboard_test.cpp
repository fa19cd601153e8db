#include "csrc/launch/scoreboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace downpour::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

ps::Progress beat(std::int64_t step, std::int64_t samples) {
  ps::Progress progress;
  progress.step = step;
  progress.samples = samples;
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  progress.mean_staleness = 1.5;
  return progress;
}

ps::ServerStatus status(int server, std::uint64_t applied) {
  ps::ServerStatus result;
  result.server = server;
  result.shards = 1;
  result.counters.applied = applied;
  result.counters.staleness[1] = applied;
  result.counters.pushed_bytes = 10 * applied;
  result.counters.max_staleness_seen = applied;
  result.snapshots = 1;
  return result;
}

TEST(Scoreboard, TheRateIsThatOfTheLastSeconds) {
  Scoreboard board;
  TimePoint now{};
  for (int tick = 0; tick <= 100; ++tick, now += milliseconds(100)) {
    board.progress(0, beat(tick, tick * 50), now);
  }
  EXPECT_NEAR(board.workers(now).at(0).samples_per_second, 500, 1);
  EXPECT_NEAR(board.totals().samples_per_second, 500, 10);
  EXPECT_EQ(board.totals().samples, 5000);
}

TEST(Scoreboard, AWorkerThatStandsStillDoesNothingPerSecond) {
  Scoreboard board;
  TimePoint now{};
  board.progress(0, beat(0, 0), now);
  board.progress(0, beat(10, 1000), now + seconds(1));
  EXPECT_GT(board.workers(now + seconds(2)).at(0).samples_per_second, 0);
  board.progress(0, beat(10, 1000), now + seconds(9));
  EXPECT_EQ(board.workers(now + seconds(9)).at(0).samples_per_second, 0);
}

TEST(Scoreboard, ARestartedWorkerCountsOn) {
  Scoreboard board;
  board.progress(1, beat(10, 1000), TimePoint{});
  board.restarted(worker(1));
  board.progress(1, beat(3, 300), TimePoint{} + seconds(5));
  EXPECT_EQ(board.totals().samples, 1300);
  EXPECT_EQ(board.workers(TimePoint{}).at(1).samples, 1300);
  EXPECT_EQ(board.workers(TimePoint{}).at(1).step, 3);
}

TEST(Scoreboard, ServersAreSummedAndARestartedOneCountsOnFromItsSnapshot) {
  Scoreboard board;
  board.status(status(0, 5));
  board.status(status(1, 7));
  board.status(status(1, 8));
  board.restarted(server(1));
  EXPECT_EQ(board.totals().shards.applied, 13u) << "nothing better is known yet";
  ps::ServerStatus early;
  early.server = 1;
  board.status(early);
  EXPECT_EQ(board.totals().shards.applied, 13u) << "without shards it has nothing to say";
  board.status(status(1, 6));  // two were undone
  board.status(status(1, 9));
  const Totals totals = board.totals();
  EXPECT_EQ(totals.shards.applied, 14u);
  EXPECT_EQ(totals.shards.staleness[1], 14u);
  EXPECT_EQ(totals.shards.pushed_bytes, 140u);
  EXPECT_EQ(totals.shards.max_staleness_seen, 9u);
  EXPECT_EQ(totals.snapshots, 3u);
}

TEST(Scoreboard, ALossIsKnownOnlyWhenReported) {
  Scoreboard board;
  auto progress = beat(1, 1);
  board.progress(0, progress, TimePoint{});
  EXPECT_FALSE(board.workers(TimePoint{}).at(0).loss.has_value());
  progress.loss = 0.25;
  board.progress(0, progress, TimePoint{});
  EXPECT_EQ(board.workers(TimePoint{}).at(0).loss, 0.25);
}

TEST(Scoreboard, TheJobsLossIsTheMeanOfTheLastOfEachWorker) {
  Scoreboard board;
  board.progress(0, beat(1, 1), TimePoint{});
  EXPECT_FALSE(board.totals().loss.has_value());
  auto progress = beat(2, 2);
  progress.loss = 0.5;
  board.progress(1, progress, TimePoint{});
  EXPECT_EQ(board.totals().loss, 0.5) << "worker 0 reports none";
  progress.loss = 1.5;
  board.progress(0, progress, TimePoint{});
  board.restarted(worker(0));
  board.progress(0, beat(1, 1), TimePoint{});
  EXPECT_EQ(board.totals().loss, 1.0) << "that of the life before, until there is another";
}

TEST(Scoreboard, TheGradientNormIsThatOverAllShards) {
  Scoreboard board;
  ps::ServerStatus one = status(0, 1);
  one.counters.last_gradient_norm = 3;
  ps::ServerStatus other = status(1, 1);
  other.counters.last_gradient_norm = 4;
  board.status(one);
  board.status(other);
  EXPECT_EQ(board.totals().shards.last_gradient_norm, 5);
}

TEST(Scoreboard, NothingReportedIsNoProgress) {
  Scoreboard board;
  EXPECT_FALSE(board.totals().any_progress);
  board.restarted(worker(0));
  board.progress(0, beat(0, 0), TimePoint{});
  EXPECT_FALSE(board.totals().any_progress);
  board.progress(0, beat(1, 0), TimePoint{});
  EXPECT_TRUE(board.totals().any_progress);
}

}  // namespace
}  // namespace downpour::launch
