#include "csrc/launch/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>

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

TEST(RunFolder, ASlashAtItsEndMakesNoDifference) {
  const RunFolder around("", ::testing::TempDir());
  const auto path = around.path() / "deep" / "run";
  const RunFolder folder(path.string() + "/", "");
  EXPECT_EQ(folder.path(), path);
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
}

TEST(RunFolder, AJobKeepsServersByHandOff) {
  const RunFolder around("", ::testing::TempDir());
  const RunFolder job(around.path() / "run", "");
  EXPECT_THROW(lock_for_server(job.path(), 0), Error);
  EXPECT_THROW(lock_for_server(job.snapshots(), 1), Error);
  EXPECT_NO_THROW(lock_for_server(around.path() / "other", 0));
}

TEST(RunFolder, ServersByHandKeepAJobOff) {
  const RunFolder around("", ::testing::TempDir());
  const auto run = around.path() / "run";
  for (const auto& folder : {run, snapshot_folder(run)}) {
    auto first = std::optional(lock_for_server(folder, 0));
    const ServerLocks second = lock_for_server(folder, 1);
    EXPECT_THROW(lock_for_server(folder, 1), Error);
    first.reset();
    try {
      RunFolder(run, "");
      ADD_FAILURE() << folder;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a server by hand uses it (lock)"), std::string::npos) << error.what();
    }
  }
  EXPECT_NO_THROW(RunFolder(run, ""));
}

// Root may write everywhere, but not below a file.
TEST(RunFolder, SaysWhyServersCouldNotWriteThere) {
  const RunFolder folder("", ::testing::TempDir());
  EXPECT_NO_THROW(folder.check_snapshots()) << "a server makes it";
  std::filesystem::create_directory(folder.snapshots());
  EXPECT_NO_THROW(folder.check_snapshots());
  std::filesystem::remove(folder.snapshots());
  const auto refused = [&folder](const std::string& why) {
    try {
      folder.check_snapshots();
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), concat("--run-folder ", folder.path().string(), ": cannot write snapshots into ",
                                     folder.snapshots().string(), ": ", why, "; choose another one"));
    }
  };
  std::ofstream(folder.snapshots()) << "no folder";
  refused("Not a directory");
  std::filesystem::remove(folder.snapshots());
  std::filesystem::create_symlink("nowhere", folder.snapshots());
  refused("No such file or directory");
  std::filesystem::remove(folder.snapshots());
  if (::geteuid() != 0) {
    std::filesystem::create_directory(folder.snapshots());
    ::chmod(folder.snapshots().c_str(), 0555);
    refused("Permission denied");
  }
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
