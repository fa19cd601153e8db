#include "csrc/launch/shared_libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;

TEST(SharedLibraries, TheLoadersListIsSortedOut) {
  const LibraryReport report = parse_loader_list(
      "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc10.so => /opt/torch/lib/libc10.so (0x00007f)\n\tlibcudart.so.13 => not "
      "found\n"
      "./train: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
      "./train)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n");
  EXPECT_THAT(report.found, ::testing::ElementsAre("libc10.so => /opt/torch/lib/libc10.so"));
  EXPECT_THAT(report.missing, ::testing::ElementsAre("libcudart.so.13", HasSubstr("GLIBCXX_3.4.32")));
}

TEST(SharedLibraries, EachKindOfLibraryHasItsFix) {
  EXPECT_THAT(library_fix("libtorch_cpu.so"), HasSubstr("LibTorch's lib folder"));
  EXPECT_THAT(library_fix("libc10.so"), HasSubstr("LibTorch's lib folder"));
  EXPECT_THAT(library_fix("libcudart.so.13"), HasSubstr("CUDA"));
  EXPECT_THAT(library_fix("libgomp.so.1"), HasSubstr("libgomp1"));
  EXPECT_THAT(library_fix("libfoo.so.1"), HasSubstr("apt-file search libfoo.so.1"));
  EXPECT_THAT(library_fix("x: version `G' not found"), HasSubstr("older"));
}

// A copy of a program with one of its libraries misspelt.
TEST(SharedLibraries, AMissingOneIsFoundWithoutRunningTheProgram) {
  const RunFolder folder("", ::testing::TempDir());
  std::string program = read_file(DOWNPOUR_PROGRAM);
  const auto at = program.find("libspdlog.so");
  ASSERT_NE(at, std::string::npos);
  program.replace(at, 9, "libmissin");
  const std::string path = (folder.path() / "program").string();
  std::ofstream(path, std::ios::binary) << program;
  ::chmod(path.c_str(), 0700);
  const Finish finish = launch({"doctor", path});
  EXPECT_EQ(finish.exit_code, 1);
  EXPECT_THAT(finish.out, HasSubstr("FAIL  library libmissin.so"));
  EXPECT_THAT(finish.out, HasSubstr("fix: "));
}

TEST(SharedLibraries, ScriptsNeedNone) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string path = (folder.path() / "script").string();
  std::ofstream(path) << "#!/bin/sh\n";
  ::chmod(path.c_str(), 0700);
  EXPECT_FALSE(shared_libraries(path, Variables()).dynamic);
  EXPECT_EQ(launch({"doctor", path}).exit_code, 0);
}

TEST(SharedLibraries, AProgramThatIsNotThereIsAProblem) {
  const Finish finish = launch({"doctor", "./no-such-program"});
  EXPECT_EQ(finish.exit_code, 1);
  EXPECT_THAT(finish.out, HasSubstr("FAIL  program ./no-such-program"));
}

}  // namespace
}  // namespace downpour::launch
