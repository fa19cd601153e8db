// The listening socket that rank 0 inherits is one that c10d's TCPStore takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/optimizers/job.h"

namespace downpour {
namespace {

using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(Rendezvous, ATCPStoreIsServedOnTheInheritedSocket) {
  testing::JobRun run({"--workers", "3"}, "store_worker", {});
  EXPECT_EQ(run.wait(), 0) << run.output();
  const auto found = run.after("found ");
  ASSERT_THAT(found, SizeIs(3)) << run.output();
  EXPECT_THAT(found.front(), StartsWith("0 1 4 at port "));
  EXPECT_THAT(std::set<std::string>(found.begin(), found.end()), SizeIs(1)) << "one store for all";
}

}  // namespace
}  // namespace downpour
