#include "csrc/launch/run_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "csrc/base/error.h"

namespace downpour::launch {
namespace {

TEST(RunFolder, AFreshOneIsPrivateAndDiesUnlessKept) {
  std::filesystem::path path;
  {
    const RunFolder folder("", ::testing::TempDir());
    path = folder.path();
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    RunFolder folder("", ::testing::TempDir());
    folder.keep();
    path = folder.path();
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove_all(path);
}

TEST(RunFolder, AGivenOneStaysAndServesOneJobAtATime) {
  const RunFolder around("", ::testing::TempDir());
  const auto path = around.path() / "deep" / "run";
  {
    const RunFolder first(path, "");
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
    try {
      RunFolder(path, "");
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(concat("process ", ::getpid(), " uses it")), std::string::npos)
          << error.what();
    }
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_NO_THROW(RunFolder(path, ""));
}

TEST(RunFolder, SaysWhyItCannotBeMade) {
  try {
    RunFolder("/proc/nothing", "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--run-folder /proc/nothing"), std::string::npos) << error.what();
  }
}

TEST(RunFolder, EveryLifeHasItsOwnLog) {
  EXPECT_EQ(log_file("/l", worker(1), 0, Channel::kError), "/l/worker-1.err");
  EXPECT_EQ(log_file("/l", server(0), 2, Channel::kOut), "/l/server-0.restart-2.out");
}

}  // namespace
}  // namespace downpour::launch
