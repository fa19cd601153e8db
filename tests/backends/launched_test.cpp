// The examples of this folder's subject, as the launcher starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace downpour::backends {
namespace {

using testing::HasSubstr;

struct Finish {
  int exit_code = -1;
  std::string output;  // standard output and error
};

Finish run(const std::string& command) {
  Finish finish;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const std::size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    finish.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  finish.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return finish;
}

std::string under_launcher(int workers, const std::string& program) {
  return std::string(DOWNPOUR_PROGRAM) + " run --workers " + std::to_string(workers) + " -- " + DOWNPOUR_TEST_BIN +
         "/" + program;
}

TEST(Launched, TheTourOfCollectivesIsRightInEveryWorld) {
  for (const int workers : {1, 2, 3}) {
    const Finish finish = run(under_launcher(workers, "collectives"));
    EXPECT_EQ(finish.exit_code, 0) << finish.output;
    EXPECT_THAT(finish.output, HasSubstr("all as expected on " + std::to_string(workers) + " ranks"));
  }
}

TEST(Launched, TheDataParallelExampleEndsWithOneModel) {
  const std::string folder = testing::TempDir() + "ddp_" + std::to_string(getpid());
  const std::string unpack = "mkdir -p " + folder +
                             " && for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 "
                             "t10k-labels-idx1; do gunzip -c /usr/share/datasets/fashion-mnist/$name-ubyte.gz >" +
                             folder + "/$name-ubyte || exit 1; done";
  ASSERT_EQ(run(unpack).exit_code, 0);
  const Finish finish = run(under_launcher(2, "ddp_fashion_mnist " + folder + " 1 1 20"));
  EXPECT_EQ(finish.exit_code, 0) << finish.output;
  EXPECT_THAT(finish.output, HasSubstr("on 2 ranks, largest difference between them 0\n"));
  run("rm -r " + folder);
}

TEST(Launched, AProgramAloneIsAWorldOfOne) {
  const Finish finish = run(std::string(DOWNPOUR_TEST_BIN) + "/collectives");
  EXPECT_EQ(finish.exit_code, 0) << finish.output;
  EXPECT_THAT(finish.output, HasSubstr("all as expected on 1 ranks"));
}

TEST(Launched, TorchrunsVariablesAreEnough) {
  const std::string program = std::string(DOWNPOUR_TEST_BIN) + "/collectives";
  const std::string port = std::to_string(20'000 + getpid() % 10'000);
  const std::string place = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " ";
  const Finish finish =
      run("sh -c '" + place + "RANK=1 " + program + " & first=$!; " + place + "RANK=0 " + program + " && wait $first'");
  EXPECT_EQ(finish.exit_code, 0) << finish.output;
  EXPECT_THAT(finish.output, HasSubstr("all as expected on 2 ranks"));
}

TEST(Launched, ARankWithoutItsVariablesIsToldWhich) {
  const Finish finish = run("RANK=0 " + std::string(DOWNPOUR_TEST_BIN) + "/collectives");
  EXPECT_NE(finish.exit_code, 0);
  EXPECT_THAT(finish.output, HasSubstr("RANK is set and WORLD_SIZE is not"));
}

}  // namespace
}  // namespace downpour::backends
