#include "csrc/launch/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

TEST(Doctor, AFailedLineSaysTheFix) {
  EXPECT_EQ(to_text({.what = "disk", .good = true, .found = "5 GB free", .fix = "x"}), "ok    disk: 5 GB free\n");
  EXPECT_EQ(to_text({.what = "disk", .good = false, .found = "", .fix = "free some"}),
            "FAIL  disk\n      fix: free some\n");
}

TEST(Doctor, ThisMachineHasWhatItNeeds) {
  const Variables none(std::vector<std::string>{"PATH=/bin"});
  for (const Check& check : {check_kernel(), check_memfd(), check_descriptor_passing(), check_eventfd(), check_cores(),
                             check_memory(), check_loopback(), check_clock(), check_libtorch(none)}) {
    EXPECT_TRUE(check.good) << to_text(check);
  }
}

TEST(Doctor, TriesTheDisk) {
  const RunFolder folder("", ::testing::TempDir());
  const Check check = check_disk(folder.path());
  EXPECT_TRUE(check.good) << check.found;
  EXPECT_THAT(check.found, HasSubstr("/s"));
  const Check missing = check_disk(folder.path() / "missing");
  EXPECT_FALSE(missing.good);
  EXPECT_THAT(missing.fix, HasSubstr("--run-folder"));
}

TEST(Doctor, OfAMissingProgramItSaysWhatToWrite) {
  const Variables none(std::vector<std::string>{"PATH=/bin"});
  EXPECT_THAT(check_libraries("nonexistent", none).front().fix, HasSubstr("./nonexistent"));
  for (const std::string path : {"/nonexistent", "./nonexistent"}) {
    const Check check = check_libraries(path, none).front();
    EXPECT_FALSE(check.good);
    EXPECT_EQ(check.fix, "check the path; chmod +x makes a file executable");
  }
}

TEST(Doctor, FindsLibTorchWhereTheLoaderIsToldToLook) {
  const RunFolder folder("", ::testing::TempDir());
  std::ofstream(folder.path() / "libtorch_cpu.so") << "x";
  const Check check =
      check_libtorch(Variables(std::vector<std::string>{"LD_LIBRARY_PATH=/nowhere:" + folder.path().string()}));
  EXPECT_THAT(check.found, HasSubstr(folder.path().string()));
}

TEST(Doctor, TheProgramItselfWorks) {
  const Finish finish = launch({"doctor", "sh"});
  EXPECT_EQ(finish.exit_code, 0) << finish.out;
  EXPECT_THAT(finish.out, HasSubstr("downpour "));
  EXPECT_THAT(finish.out, HasSubstr("ok    libraries of "));
  EXPECT_THAT(finish.out, HasSubstr("all is well"));
}

TEST(Doctor, AFewOpenFilesAreAProblem) {
  const Finish finish =
      launch({"run", "-q", "--", "sh", "-c", std::string("ulimit -n 64; exec ") + DOWNPOUR_PROGRAM + " doctor"});
  EXPECT_THAT(finish.out, HasSubstr("FAIL  open files: 64 allowed"));
  EXPECT_THAT(finish.out, HasSubstr("ulimit -n"));
  EXPECT_THAT(finish.out, HasSubstr("1 problem\n"));
}

}  // namespace
}  // namespace downpour::launch
