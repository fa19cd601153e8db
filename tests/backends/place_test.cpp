#include "backends/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "csrc/base/error.h"

namespace downpour::backends {
namespace {

using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

// Sets variables for as long as it lives, and no others of those that are read.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "DOWNPOUR_MASTER_FD",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_NTASKS_PER_NODE",
                             "SLURM_JOB_ID",
                             "SLURM_NNODES",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "TORCHELASTIC_RESTART_COUNT"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) {
      unsetenv(name.c_str());
    }
  }

 private:
  std::vector<std::string> names_;
};

Place place_of(const Variables& variables) {
  const Environment environment(variables);
  return read_place();
}

std::string error_of(const Variables& variables) {
  try {
    place_of(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Place, AloneIsAWorldOfOne) {
  const Place place = place_of({});
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world, 1);
}

TEST(Place, IsThatOfTorchrunsNames) {
  const Place place = place_of({{"RANK", "2"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "node1"},
                                {"MASTER_PORT", "29500"},
                                {"DOWNPOUR_MASTER_FD", "9"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_RESTART_COUNT", "3"}});
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.world, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.master, "node1");
  EXPECT_EQ(place.port, 29500);
  EXPECT_EQ(place.master_socket, 9);
  EXPECT_TRUE(place.agent_store);
  EXPECT_EQ(place.attempt, 3);
}

TEST(Place, OfOpenMpiAndSlurmOnOneMachineNeedsNoAddress) {
  const Variables mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_NAMESPACE", "prterun-1"}};
  const Place place = place_of(mpi);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world, 2);
  EXPECT_EQ(place.master, "127.0.0.1");
  EXPECT_GE(place.port, 20'000);
  EXPECT_EQ(place.port, place_of(mpi).port);
  const Place slurm = place_of({{"SLURM_PROCID", "1"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_NNODES", "1"},
                                {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(slurm.rank, 1);
  EXPECT_EQ(slurm.world, 4);
  EXPECT_EQ(slurm.master, "127.0.0.1");
}

TEST(Place, SaysWhatLacks) {
  EXPECT_THAT(error_of({{"RANK", "0"}}), HasSubstr("RANK is set and WORLD_SIZE is not"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set and RANK is not"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}, {"SLURM_JOB_ID", "1"}}),
              HasSubstr("MASTER_ADDR is not"));
}

TEST(Place, SaysWhichVariableHoldsWhat) {
  EXPECT_THAT(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK: expected a number from 0 to 1, found '2'"));
  EXPECT_THAT(error_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), HasSubstr("found 'x'"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE: expected a number from 1"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}}),
              HasSubstr("MASTER_PORT: expected a number from 1 to 65535, found '0'"));
}

}  // namespace
}  // namespace downpour::backends
