#include "optimizers/session.h"

#include <gtest/gtest.h>

namespace downpour::optimizers {
namespace {

TEST(MemberOptions, TheLaunchersSilenceIsTheWorkersToo) {
  Environment environment;
  EXPECT_EQ(member_options(environment, {}).silence, ps::MemberOptions().silence) << "nobody said anything";
  environment.silence = std::chrono::seconds(60);
  EXPECT_EQ(member_options(environment, {}).silence, std::chrono::seconds(60));
  environment.no_deadlines = true;
  EXPECT_GT(member_options(environment, {}).silence, std::chrono::hours(1000))
      << "a debugger stops for as long as it likes";
}

}  // namespace
}  // namespace downpour::optimizers
