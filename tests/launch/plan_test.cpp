#include "csrc/launch/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/malloc_settings.h"

namespace downpour::launch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Case {
  RunOptions options;
  Plan plan;

  explicit Case(int workers = 2, int servers = 1, Variables user = Variables(std::vector<std::string>{"PATH=/bin"})) {
    options.workers = workers;
    options.servers = servers;
    plan.job = 0xabc;
    plan.run_folder = "/run";
    plan.user = user_variables(options, user);
    plan.endpoints = {.coordinator = "127.0.0.1:1",
                      .master_address = "127.0.0.1",
                      .master_port = 2,
                      .master_fd = 9,
                      .servers = {"127.0.0.1:3", "127.0.0.1:4"},
                      .server_fds = {10, 11}};
    plan_threads(options, 8, plan);
  }
  std::vector<std::string> of(Target who, int life = 0) const { return variables_of(options, plan, who, life); }
};

TEST(Plan, AWorkerGetsTorchrunsNamesAndOurs) {
  const auto variables = Case().of(worker(1), 2);
  for (const char* entry :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=2",
        "DOWNPOUR_ROLE=worker", "DOWNPOUR_SERVERS=1", "DOWNPOUR_SERVER_ENDPOINTS=127.0.0.1:3,127.0.0.1:4",
        "DOWNPOUR_COORDINATOR=127.0.0.1:1", "DOWNPOUR_JOB=0000000000000abc", "DOWNPOUR_RESTARTS=2",
        "DOWNPOUR_RUN_FOLDER=/run", "PATH=/bin"}) {
    EXPECT_THAT(variables, Contains(entry));
  }
}

TEST(Plan, OnlyRankZeroInheritsTheRendezvousSocket) {
  EXPECT_THAT(Case().of(worker(0)), Contains("DOWNPOUR_MASTER_FD=9"));
  EXPECT_THAT(Case().of(worker(1)), Not(Contains(StartsWith("DOWNPOUR_MASTER_FD"))));
  EXPECT_THAT(Case().of(server(0)), Not(Contains(StartsWith("DOWNPOUR_MASTER_FD"))));
}

TEST(Plan, WorldSizeCountsWorkersOnlyAndServersHaveNoRank) {
  const auto variables = Case(2, 2).of(server(1));
  EXPECT_THAT(variables, Contains("DOWNPOUR_ROLE=server"));
  EXPECT_THAT(variables, Contains("DOWNPOUR_SERVER_INDEX=1"));
  EXPECT_THAT(variables, Contains("DOWNPOUR_LISTEN_FD=11"));
  EXPECT_THAT(variables, Not(Contains(StartsWith("RANK="))));
  EXPECT_THAT(Case(2, 2).of(worker(0)), Contains("WORLD_SIZE=2"));
}

TEST(Plan, MallocSettingsAreForWorkersAndTheUsersOwnWin) {
  for (const std::string& ours : malloc_variables({})) {
    EXPECT_THAT(Case().of(worker(0)), Contains(ours));
    const std::string name = ours.substr(0, ours.find('=') + 1);
    const Case own(2, 1, Variables(std::vector<std::string>{name + "1"}));
    EXPECT_THAT(own.of(worker(0)), Contains(name + "1"));
    EXPECT_THAT(own.of(worker(0)), Contains(StartsWith(name)).Times(1));
    EXPECT_THAT(own.of(worker(0)), Contains(StartsWith("MALLOC_")).Times(3)) << "the other two are still ours";
  }
  EXPECT_EQ(malloc_variables({}).size(), 3u);
  EXPECT_THAT(Case().of(server(0)), Not(Contains(StartsWith("MALLOC_"))));
  const Case tuned(2, 1, Variables(std::vector<std::string>{"GLIBC_TUNABLES=glibc.malloc.check=1"}));
  EXPECT_THAT(tuned.of(worker(0)), Contains("GLIBC_TUNABLES=glibc.malloc.check=1"));
  EXPECT_THAT(tuned.of(worker(0)), Not(Contains(StartsWith("MALLOC_"))));
}

TEST(Plan, ThreadsAreCoresPerWorkerUnlessTheUserSaysOtherwise) {
  EXPECT_THAT(Case(2).of(worker(0)), Contains("OMP_NUM_THREADS=4"));
  EXPECT_THAT(Case(2).of(worker(0)), Contains("MKL_NUM_THREADS=4"));
  EXPECT_THAT(Case(100).of(worker(0)), Contains("OMP_NUM_THREADS=1"));
  const Case own(2, 1, Variables(std::vector<std::string>{"OMP_NUM_THREADS=7"}));
  EXPECT_THAT(own.of(worker(0)), Contains("OMP_NUM_THREADS=7"));
  EXPECT_THAT(own.of(worker(0)), Not(Contains(StartsWith("MKL_NUM_THREADS"))));
  Case flag(2, 1, Variables(std::vector<std::string>{"OMP_NUM_THREADS=7"}));
  flag.options.threads = 3;
  plan_threads(flag.options, 8, flag.plan);
  EXPECT_THAT(flag.of(worker(0)), Contains("OMP_NUM_THREADS=3"));
}

TEST(Plan, WhatAnotherLauncherLeftIsForgotten) {
  const Case inherited(2, 1,
                       Variables(std::vector<std::string>{"RANK=7", "DOWNPOUR_MASTER_FD=3",
                                                          "TORCHELASTIC_USE_AGENT_STORE=True", "MY=1"}));
  EXPECT_THAT(inherited.of(worker(1)), Not(Contains(StartsWith("TORCHELASTIC"))));
  EXPECT_THAT(inherited.of(worker(1)), Not(Contains(StartsWith("DOWNPOUR_MASTER_FD"))));
  EXPECT_THAT(inherited.of(worker(1)), Contains("MY=1"));
  EXPECT_THAT(inherited.of(server(0)), Not(Contains(StartsWith("RANK="))));
}

TEST(Plan, ExtraVariablesAreSetOrTakenFromOurs) {
  RunOptions options;
  options.variables = {"A=1", "B"};
  const Variables ours(std::vector<std::string>{"A=0", "B=2"});
  EXPECT_EQ(user_variables(options, ours).get("A"), "1");
  EXPECT_EQ(user_variables(options, ours).get("B"), "2");
  options.variables = {"MISSING"};
  try {
    user_variables(options, ours);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("MISSING=VALUE"));
  }
}

TEST(Plan, DebuggingSwitchesDeadlinesOff) {
  Case debugging;
  EXPECT_THAT(debugging.of(worker(0)), Contains("DOWNPOUR_NO_DEADLINES=0"));
  debugging.options.gdb = 1;
  EXPECT_THAT(debugging.of(worker(0)), Contains("DOWNPOUR_NO_DEADLINES=1"));
  EXPECT_THAT(debugging.of(server(0)), Contains("DOWNPOUR_NO_DEADLINES=1"));
}

TEST(Plan, EverybodyKnowsHowLongSilenceMayLast) {
  Case patient;
  patient.options.silence = std::chrono::milliseconds(60'500);
  EXPECT_THAT(patient.of(worker(0)), Contains("DOWNPOUR_SILENCE=60.5"));
  EXPECT_THAT(patient.of(server(0)), Contains("DOWNPOUR_SILENCE=60.5"));
}

TEST(Plan, OneLineSaysIt) {
  Case given;
  EXPECT_EQ(to_text(given.options, given.plan), "1 server, 2 workers, 4 threads each (8 cores / 2 workers)");
  given.options.run_folder = "/run";
  given.options.insecure = true;
  EXPECT_THAT(to_text(given.options, given.plan), HasSubstr("INSECURE"));
  EXPECT_THAT(to_text(given.options, given.plan), HasSubstr("run folder /run"));
}

}  // namespace
}  // namespace downpour::launch
