#include "csrc/base/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "csrc/base/error.h"

namespace downpour {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Variables that are there while a test runs.
class EnvironmentTest : public ::testing::Test {
 protected:
  ~EnvironmentTest() override {
    for (const std::string& name : names_) {
      ::unsetenv(name.c_str());
    }
  }
  void set(const std::string& entry) {
    names_.push_back(entry.substr(0, entry.find('=')));
    ::setenv(names_.back().c_str(), entry.substr(entry.find('=') + 1).c_str(), 1);
  }
  void set_all(const std::vector<std::string>& entries) {
    for (const std::string& entry : entries) {
      set(entry);
    }
  }
  static std::string mistake() {
    try {
      read_environment();
      return "not refused";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  std::vector<std::string> names_;
};

Environment a_worker() {
  Environment environment;
  environment.role = ProcessRole::kWorker;
  environment.rank = 1;
  environment.world_size = 3;
  environment.job = 0xabcdef;
  environment.coordinator = "127.0.0.1:9";
  environment.servers = 2;
  environment.silence = std::chrono::milliseconds(60'500);
  return environment;
}

TEST_F(EnvironmentTest, AWorkerReadsWhatItsLauncherWrote) {
  set_all(to_variables(a_worker()));
  const Environment environment = read_environment();
  EXPECT_EQ(environment.role, ProcessRole::kWorker);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 3);
  EXPECT_EQ(environment.job, 0xabcdefu);
  EXPECT_EQ(environment.coordinator, "127.0.0.1:9");
  EXPECT_EQ(environment.servers, 2);
  EXPECT_EQ(environment.silence, std::chrono::milliseconds(60'500));
}

TEST_F(EnvironmentTest, WithoutVariablesItIsAlone) {
  EXPECT_EQ(read_environment().role, ProcessRole::kAlone);
  EXPECT_EQ(read_environment().silence, std::nullopt);
}

// Each of them alone once made a run of its own, silently.
TEST_F(EnvironmentTest, HalfAJobIsRefusedAndWhatIsMissingIsNamed) {
  for (const std::string left_out : {"DOWNPOUR_COORDINATOR", "DOWNPOUR_ROLE", "DOWNPOUR_JOB", "DOWNPOUR_SERVERS"}) {
    set_all(to_variables(a_worker()));
    ::unsetenv(left_out.c_str());
    EXPECT_THAT(mistake(), AllOf(HasSubstr(" set, but not " + left_out + ";"), HasSubstr("downpour serve")));
    set(left_out + "=");
    EXPECT_THAT(mistake(), HasSubstr(" set, but not " + left_out + ";")) << "empty is not set";
  }
}

TEST_F(EnvironmentTest, TheThreeVariablesOfOldAreNotEnough) {
  set_all({"RANK=0", "WORLD_SIZE=1", "DOWNPOUR_COORDINATOR=127.0.0.1:9"});
  EXPECT_THAT(mistake(), HasSubstr("DOWNPOUR_COORDINATOR set, but not DOWNPOUR_ROLE, DOWNPOUR_JOB, DOWNPOUR_SERVERS;"));
}

TEST_F(EnvironmentTest, AWorkerHasARank) {
  set_all(to_variables(a_worker()));
  ::unsetenv("RANK");
  EXPECT_THAT(mistake(), HasSubstr(" set, but not RANK;"));
  ::unsetenv("WORLD_SIZE");
  EXPECT_THAT(mistake(), HasSubstr(" set, but not RANK, WORLD_SIZE;"));
}

TEST_F(EnvironmentTest, AServerHasNone) {
  Environment environment = a_worker();
  environment.role = ProcessRole::kServer;
  environment.server_index = environment.listen_fd = 3;
  set_all(to_variables(environment));
  EXPECT_EQ(read_environment().server_index, 3);
}

TEST_F(EnvironmentTest, AnotherLaunchersRanksAreNoHalfJob) {
  set_all({"RANK=1", "WORLD_SIZE=4"});
  EXPECT_EQ(read_environment().rank, 1);
}

// Kubernetes sets MASTER_PORT so beside a service of that name.
TEST_F(EnvironmentTest, WhatIsMeantForOthersIsNotLookedAt) {
  set_all({"MASTER_PORT=tcp://10.0.0.1:2222", "MASTER_ADDR=", "LOCAL_RANK=none", "LOCAL_WORLD_SIZE=0",
           "DOWNPOUR_MASTER_FD=x", "DOWNPOUR_RESTARTS=x"});
  EXPECT_EQ(read_environment().role, ProcessRole::kAlone);
  set_all(to_variables(a_worker()));
  EXPECT_EQ(read_environment().rank, 1);
}

TEST_F(EnvironmentTest, ASilenceThatIsNoneIsNamed) {
  for (const char* value : {"0", "-1", "nan", "inf", "10 s", ""}) {
    set(concat("DOWNPOUR_SILENCE=", value));
    EXPECT_THAT(mistake(), AllOf(HasSubstr("DOWNPOUR_SILENCE"), HasSubstr(concat("found '", value, "'"))));
  }
}

}  // namespace
}  // namespace downpour
