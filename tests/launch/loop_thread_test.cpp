#include "csrc/launch/loop_thread.h"

#include <gtest/gtest.h>

#include <future>

#include "csrc/base/error.h"

namespace downpour::launch {
namespace {

class LoopThreadTest : public ::testing::Test {
 protected:
  SteadyClock clock_;
  transport::Loop loop_{clock_};
  std::promise<std::string> why_;
  LoopThread thread_{loop_, [this](const std::string& why) { why_.set_value(why); }};
};

TEST_F(LoopThreadTest, WhatIsThrownThereIsToldAndEndsNoProcess) {
  loop_.post([] { throw InternalError("the coordinator's own words"); });
  EXPECT_EQ(why_.get_future().get(), "the coordinator's own words");
  EXPECT_TRUE(thread_.failed());
}

TEST_F(LoopThreadTest, ItRunsUntilItDies) {
  std::promise<std::thread::id> ran;
  loop_.post([&ran] { ran.set_value(std::this_thread::get_id()); });
  EXPECT_NE(ran.get_future().get(), std::this_thread::get_id());
  EXPECT_FALSE(thread_.failed());
}

}  // namespace
}  // namespace downpour::launch
