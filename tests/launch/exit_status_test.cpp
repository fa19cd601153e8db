#include "csrc/launch/exit_status.h"

#include <gtest/gtest.h>

#include <csignal>

namespace downpour::launch {
namespace {

TEST(ExitStatus, SpeaksLikeAShell) {
  EXPECT_EQ((ExitStatus{.code = 3}.shell_code()), 3);
  EXPECT_EQ((ExitStatus{.signal = SIGKILL}.shell_code()), 137);
  EXPECT_TRUE(ExitStatus{}.success());
  EXPECT_EQ((ExitStatus{.code = 3}.text()), "exit code 3");
  EXPECT_EQ((ExitStatus{.signal = SIGABRT, .core_dumped = true}.text()), "killed by SIGABRT (signal 6), core dumped");
  EXPECT_EQ(signal_name(99), "signal 99");
}

}  // namespace
}  // namespace downpour::launch
