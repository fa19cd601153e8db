#include "optimizers/cadence.h"

#include <gtest/gtest.h>

#include <string>

namespace downpour::optimizers {
namespace {

// "P" where a push ends, "F" where a pull does, "B" for both, "." for neither.
std::string run(Cadence& cadence, int steps) {
  std::string marks;
  for (int step = 0; step < steps; ++step) {
    const bool push = cadence.push_ends_now(), fetch = cadence.fetch_ends_now();
    marks += push && fetch ? 'B' : push ? 'P' : fetch ? 'F' : '.';
    cadence.advance();
  }
  return marks;
}

TEST(Cadence, PushesAndPullsAreIndependent) {
  Cadence every(1, 1), sparse(2, 3);
  EXPECT_EQ(run(every, 4), "BBBB");
  EXPECT_EQ(run(sparse, 12), ".PFP.B.PFP.B");
  EXPECT_EQ(sparse.steps(), 12);
}

TEST(Cadence, ALeaseEndsItsPushHoweverShort) {
  Cadence cadence(4, 1);
  cadence.begin_lease(7, 2);
  EXPECT_EQ(cadence.lease(), 7);
  EXPECT_EQ(run(cadence, 2), "FB");
  EXPECT_EQ(cadence.lease(), 0);
  EXPECT_FALSE(cadence.push_begun());
  EXPECT_EQ(run(cadence, 4), "FFFB") << "without a lease it is n_push again";
}

TEST(Cadence, GoesOnWhereACheckpointSays) {
  Cadence whole(3, 2), resumed(3, 2);
  run(whole, 5);
  resumed.go_on_at(whole.steps(), whole.in_push());
  EXPECT_EQ(run(whole, 9), run(resumed, 9));
}

TEST(Cadence, EndsAPushBeforeItsTime) {
  Cadence cadence(3, 1);
  cadence.advance();
  EXPECT_TRUE(cadence.push_begun());
  cadence.end_push();
  EXPECT_FALSE(cadence.push_begun());
  EXPECT_EQ(run(cadence, 3), "FFB");
}

}  // namespace
}  // namespace downpour::optimizers
