#include "csrc/transport/timers.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "csrc/base/random.h"
#include "tests/support/allocations.h"

namespace downpour::transport {
namespace {

using std::chrono::seconds;

TEST(Timers, FireInTheOrderOfTheirTimes) {
  Random random(5);
  Timers timers;
  std::multimap<std::pair<int, std::uint64_t>, std::uint64_t> expected;
  std::vector<std::uint64_t> fired;
  for (int step = 0; step < 5000; ++step) {
    if (random.below(3) == 0 && !expected.empty()) {
      auto victim = expected.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random.below(expected.size())));
      timers.cancel(victim->second);
      expected.erase(victim);
    } else {
      const int when = static_cast<int>(random.below(50));
      const std::uint64_t id = timers.newest() + 1;
      ASSERT_EQ(timers.add(TimePoint(seconds(when)), [&fired, id] { fired.push_back(id); }), id);
      expected.emplace(std::pair(when, id), id);
    }
    ASSERT_EQ(timers.next().has_value(), !expected.empty());
    if (!expected.empty()) {
      ASSERT_EQ(*timers.next(), TimePoint(seconds(expected.begin()->first.first)));
    }
  }
  timers.cancel(0);
  timers.cancel(timers.newest() + 1);
  while (const auto callback = timers.take_due(TimePoint(seconds(100)), timers.newest())) {
    callback();
  }
  std::vector<std::uint64_t> in_order;
  for (const auto& [key, id] : expected) {
    in_order.push_back(id);
  }
  EXPECT_EQ(fired, in_order);
}

TEST(Timers, ASteadyBeatAllocatesNothing) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  Timers timers;
  int beats = 0;
  const auto add = [&](int when) { timers.add(TimePoint(seconds(when)), [&beats] { ++beats; }); };
  for (int i = 0; i < 10; ++i) {
    add(i);
  }
  const std::uint64_t before = allocations();
  for (int i = 10; i < 1000; ++i) {
    timers.take_due(TimePoint(seconds(i)), timers.newest())();
    add(i);
  }
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace downpour::transport
