#include "csrc/collective/operation.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "csrc/base/error.h"

namespace downpour::collective {
namespace {

TimePoint soon(Duration duration) { return std::chrono::steady_clock::now() + duration; }

TEST(Operation, ItIsUnderWayUntilItIsFinished) {
  Operation operation;
  EXPECT_FALSE(operation.is_done());
  EXPECT_EQ(operation.error(), nullptr);
  EXPECT_EQ(operation.source(), -1);
  operation.finish(std::make_exception_ptr(CommError("rank 3 is lost")), 3);
  EXPECT_TRUE(operation.is_done());
  EXPECT_EQ(text_of(operation.error()), "rank 3 is lost");
  EXPECT_EQ(operation.source(), 3);
}

TEST(Operation, WhatFollowsRunsOnceWhetherItWasSaidBeforeOrAfter) {
  Operation operation;
  std::string heard;
  operation.then([&] { heard += "a"; });
  operation.then([&] { heard += operation.is_done() ? "b" : "?"; });
  EXPECT_EQ(heard, "");
  operation.finish(nullptr);
  EXPECT_EQ(heard, "ab");
  operation.then([&] { heard += "c"; });
  EXPECT_EQ(heard, "abc");
}

TEST(Operation, WhatFollowsMayFailWithoutHarmToTheOthers) {
  Operation operation;
  int heard = 0;
  operation.then([] { throw Error("of no use"); });
  operation.then([&] { ++heard; });
  operation.finish(nullptr);
  operation.then([] { throw Error("of no use"); });
  EXPECT_EQ(heard, 1);
}

TEST(Operation, AWaitEndsAtItsDeadlineAndTheOperationGoesOn) {
  Operation operation;
  EXPECT_FALSE(operation.wait(soon(-std::chrono::seconds(1))));
  EXPECT_FALSE(operation.wait(soon(std::chrono::milliseconds(2))));
  operation.finish(std::make_exception_ptr(Error("its own")));
  EXPECT_TRUE(operation.wait(soon(-std::chrono::seconds(1)))) << "and throws nothing";
}

TEST(Operation, WhoeverWaitsIsWoken) {
  Operation operation;
  std::thread waiting([&] { EXPECT_TRUE(operation.wait(TimePoint::max())); });
  operation.finish(nullptr);
  waiting.join();
}

}  // namespace
}  // namespace downpour::collective
