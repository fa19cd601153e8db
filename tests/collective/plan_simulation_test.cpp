#include "tests/collective/plan_simulation.h"

#include <gtest/gtest.h>

namespace downpour::collective {
namespace {

const CallShape kShape{Op::kAllReduce, ElementType::kFloat64, ReduceOp::kSum, 0, 4};

std::string failure_of(const std::vector<Plan>& plans, const Delivery& delivery = {}) {
  std::vector<Memory> memories = memories_for(kShape, static_cast<int>(plans.size()));
  return simulate(plans, memories, delivery).failure;
}

constexpr Slice kAll{Buffer::kOutput, 0, 4};

Plan plan_of(std::vector<Step> steps) { return {{}, std::move(steps), 0}; }
Step sending(int to, const Slice& slice = kAll) { return {to, slice, Step::kNobody, {}, Arrival::kCopy}; }
Step receiving(int from, const Slice& slice = kAll) { return {Step::kNobody, {}, from, slice, Arrival::kCopy}; }

TEST(PlanSimulation, NoticesPlansThatDoNotFit) {
  EXPECT_EQ(failure_of({plan_of({sending(1)}), plan_of({receiving(0)})}), "");
  EXPECT_EQ(failure_of({plan_of({receiving(1), sending(1)}), plan_of({receiving(0), sending(0)})}),
            "rank 0: waits for ever in step 0");
  EXPECT_EQ(failure_of({plan_of({sending(1)}), plan_of({})}), "rank 1: leaves a message of rank 0");
  EXPECT_EQ(failure_of({plan_of({sending(1, {Buffer::kOutput, 1, 2})}), plan_of({receiving(0)})}),
            "rank 1: waits for 4 from 0, got 2");
  EXPECT_EQ(failure_of({plan_of({sending(1)}), plan_of({receiving(0, {Buffer::kOutput, 1, 4})})}),
            "rank 1: [1,5) of buffer 1, which has 4");
  EXPECT_EQ(failure_of({plan_of({sending(1)}), plan_of({receiving(0, {Buffer::kInput, 0, 4})})}),
            "rank 1: writes its input");
}

TEST(PlanSimulation, NoticesALinkThatMustHoldWhatNobodyTakesYet) {
  const std::vector<Plan> plans = {plan_of({sending(1), receiving(1)}), plan_of({sending(0), receiving(0)})};
  EXPECT_EQ(failure_of(plans), "");
  EXPECT_EQ(failure_of(plans, {Links::kRendezvous, Turns::kInTurn, 0}), "rank 0: waits for ever in step 0");
}

TEST(PlanSimulation, NoticesASumCompletedTwice) {
  const Step last{Step::kNobody, {}, 1, kAll, Arrival::kReduceLast};
  EXPECT_EQ(failure_of({plan_of({last, last}), plan_of({sending(0), sending(0)})}), "rank 0: reduces what is complete");
}

// Doubling in place would do this, and is found out twice over: a link that reads late sends a sum for a value, and
// where it does not, each rank puts its own value first.
TEST(PlanSimulation, NoticesASliceThatChangesBeforeItIsTaken) {
  const auto exchange = [](int peer) { return plan_of({{peer, kAll, peer, kAll, Arrival::kReduce}}); };
  const std::vector<Plan> plans = {exchange(1), exchange(0)};
  std::vector<Memory> late = memories_for(kShape, 2), buffered = late;
  EXPECT_EQ(simulate(plans, late, {Links::kLate, Turns::kInTurn, 0}).failure, "");
  EXPECT_EQ(simulate(plans, buffered, {}).failure, "");
  const Element &first = buffered[0].of(Buffer::kOutput)[0], &second = buffered[1].of(Buffer::kOutput)[0];
  EXPECT_EQ(first.sum, second.sum);
  EXPECT_NE(first.order, second.order);
  EXPECT_NE(late[0].of(Buffer::kOutput)[0].sum, late[1].of(Buffer::kOutput)[0].sum);
}

TEST(PlanSimulation, NoticesOutputsThatAreNotWhatWasPromised) {
  const std::vector<Memory> before = memories_for(kShape, 2);
  EXPECT_EQ(difference(kShape, before, before), "rank 0, element 0");
}

}  // namespace
}  // namespace downpour::collective
