#include "csrc/base/malloc_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace downpour {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(MallocVariables, AreThree) {
  EXPECT_THAT(malloc_variables({"HOME=/root"}),
              ElementsAre("MALLOC_MMAP_THRESHOLD_=1073741824", "MALLOC_TRIM_THRESHOLD_=4294967296",
                          "MALLOC_TOP_PAD_=67108864"));
}

TEST(MallocVariables, TheUsersOwnWin) {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    const auto variables = malloc_variables({std::string(name) + "=1"});
    EXPECT_THAT(variables, SizeIs(2));
    EXPECT_THAT(variables, ::testing::Not(::testing::Contains(HasSubstr(name))));
  }
  EXPECT_THAT(malloc_variables({"GLIBC_TUNABLES=glibc.malloc.check=1"}), IsEmpty());
}

constexpr std::size_t kBytes = 40 << 20;  // above the largest threshold that glibc adapts to by itself
constexpr int kSteps = 8;

// Page faults of a child that takes and frees a large block again and again, as the steps of a network do.
long faults_of_child(const std::vector<std::pair<const char*, const char*>>& variables, bool keep) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  if (::fork() == 0) {
    for (const auto& [name, value] : variables) {
      ::setenv(name, value, 1);
    }
    if (keep) {
      keep_freed_memory();
    }
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    for (int step = 0; step < kSteps; ++step) {
      auto* const volatile memory = static_cast<char*>(std::malloc(kBytes));
      std::memset(memory, step, kBytes);
      std::free(memory);
    }
    ::getrusage(RUSAGE_SELF, &after);
    const long faults = after.ru_minflt - before.ru_minflt;
    [[maybe_unused]] const ssize_t count = ::write(ends[1], &faults, sizeof(faults));
    std::_Exit(0);
  }
  long faults = -1;
  EXPECT_EQ(::read(ends[0], &faults, sizeof(faults)), static_cast<ssize_t>(sizeof(faults)));
  ::close(ends[0]);
  ::close(ends[1]);
  ::wait(nullptr);
  return faults;
}

TEST(KeepFreedMemory, MemoryIsTouchedFirstOnlyOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers bring their own allocator";
#endif
  const long once = static_cast<long>(kBytes) / ::sysconf(_SC_PAGESIZE);
  EXPECT_LT(faults_of_child({}, true), 2 * once);
  EXPECT_GT(faults_of_child({}, false), (kSteps - 1) * once) << "glibc's defaults";
}

TEST(KeepFreedMemory, TheUsersOwnSettingsWin) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers bring their own allocator";
#endif
  const long once = static_cast<long>(kBytes) / ::sysconf(_SC_PAGESIZE);
  EXPECT_GT(faults_of_child({{"GLIBC_TUNABLES", "glibc.malloc.check=0"}}, true), (kSteps - 1) * once);
  EXPECT_GT(faults_of_child({{"MALLOC_MMAP_THRESHOLD_", "131072"}}, true), (kSteps - 1) * once);
}

}  // namespace
}  // namespace downpour
