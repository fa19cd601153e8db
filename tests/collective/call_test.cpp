#include "csrc/collective/call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace downpour::collective {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::array<std::byte, 256> memory;

using Sizes = std::vector<std::size_t>;

Call call_of(const CallShape& shape, const Sizes& inputs, const Sizes& outputs) {
  Call call{shape, {}, {}};
  for (const std::size_t size : inputs) {
    call.inputs.push_back(Bytes(memory).first(size));
  }
  for (const std::size_t size : outputs) {
    call.outputs.push_back(MutableBytes(memory).first(size));
  }
  return call;
}

// "" for none.
std::string error_of(const CallShape& shape, const Sizes& inputs, const Sizes& outputs, int rank = 0, int world = 3) {
  try {
    check_call(call_of(shape, inputs, outputs), rank, world);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

CallShape floats(Op op, std::int64_t count, std::int32_t root = 0) {
  return {op, ElementType::kFloat32, ReduceOp::kSum, root, count};
}

TEST(Call, PrintsItsShape) {
  EXPECT_EQ(to_string(CallShape()), "barrier");
  EXPECT_EQ(to_string(floats(Op::kAllReduce, 1024)), "all_reduce of 1024 float, sum");
  EXPECT_EQ(to_string({Op::kBroadcast, ElementType::kInt64, ReduceOp::kSum, 1, 3}), "broadcast of 3 long from rank 1");
  EXPECT_EQ(to_string(floats(Op::kReduce, 5, 2)), "reduce of 5 float, sum to rank 2");
  EXPECT_EQ(to_string(floats(Op::kGather, 5, 2)), "gather of 5 float to rank 2");
  EXPECT_EQ(to_string(floats(Op::kScatter, 5, 2)), "scatter of 5 float from rank 2");
  EXPECT_EQ(to_string(floats(Op::kAllGather, 5)), "all_gather of 5 float");
  EXPECT_EQ(to_string(floats(Op::kReduceScatter, 0)), "reduce_scatter of 0 float, sum");
  EXPECT_EQ(to_string(floats(Op::kAllToAll, CallShape::kUneven)), "all_to_all of uneven slices of float");
}

TEST(Call, TakesWhatEachOperationHas) {
  EXPECT_EQ(error_of({}, {}, {}), "");
  EXPECT_EQ(error_of(floats(Op::kBroadcast, 4, 2), {}, {16}), "");
  EXPECT_EQ(error_of(floats(Op::kAllReduce, 4), {}, {16}), "");
  EXPECT_EQ(error_of(floats(Op::kReduce, 4), {}, {16}), "");
  EXPECT_EQ(error_of(floats(Op::kAllGather, 4), {16}, {16, 16, 16}), "");
  EXPECT_EQ(error_of(floats(Op::kGather, 4, 1), {16}, {16, 16, 16}, 1), "");
  EXPECT_EQ(error_of(floats(Op::kGather, 4, 1), {16}, {}, 2), "");
  EXPECT_EQ(error_of(floats(Op::kScatter, 4, 1), {16, 16, 16}, {16}, 1), "");
  EXPECT_EQ(error_of(floats(Op::kScatter, 4, 1), {}, {16}, 0), "");
  EXPECT_EQ(error_of(floats(Op::kReduceScatter, 4), {16, 16, 16}, {16}), "");
  EXPECT_EQ(error_of(floats(Op::kAllToAll, 4), {16, 16, 16}, {16, 16, 16}), "");
  EXPECT_EQ(error_of(floats(Op::kAllToAll, CallShape::kUneven), {0, 4, 8}, {0, 16, 4}), "");
  EXPECT_EQ(error_of(floats(Op::kAllReduce, 0), {}, {0}), "");
}

TEST(Call, SaysWhichBufferHasTheWrongSize) {
  EXPECT_EQ(
      error_of(floats(Op::kAllReduce, 4), {}, {12}, 1),
      "all_reduce of 4 float, sum, on rank 1 of 3: output: expected 16 bytes in 1 piece, found 12 bytes in 1 piece");
  EXPECT_EQ(error_of(floats(Op::kAllGather, 4), {16}, {48}),
            "all_gather of 4 float, on rank 0 of 3: output: expected 48 bytes in 3 pieces, found 48 bytes in 1 piece");
  EXPECT_EQ(error_of(floats(Op::kAllGather, 4), {20}, {16, 16, 16}),
            "all_gather of 4 float, on rank 0 of 3: input: expected 16 bytes in 1 piece, found 20 bytes in 1 piece");
  EXPECT_EQ(error_of(floats(Op::kReduceScatter, 4), {16, 16}, {16}),
            "reduce_scatter of 4 float, sum, on rank 0 of 3: input: expected 48 bytes in 3 pieces, found 32 bytes in 2 "
            "pieces");
  EXPECT_EQ(error_of(floats(Op::kAllGather, 4), {16}, {16, 20, 12}),
            "all_gather of 4 float, on rank 0 of 3: output 1: expected 16 bytes, found 20");
}

TEST(Call, SaysWhichBufferShouldNotBeThere) {
  EXPECT_EQ(error_of(floats(Op::kGather, 4, 1), {16}, {48}, 2),
            "gather of 4 float to rank 1, on rank 2 of 3: output: expected none, found 48 bytes in 1 piece");
  EXPECT_THAT(error_of(floats(Op::kAllReduce, 4), {16}, {16}), HasSubstr("input: expected none, found 16 bytes"));
  EXPECT_THAT(error_of({}, {}, {1}), HasSubstr("barrier, on rank 0 of 3: output: expected none"));
}

TEST(Call, UnevenSlicesAreAListOfWholeElements) {
  const CallShape shape = floats(Op::kAllToAll, CallShape::kUneven);
  EXPECT_THAT(error_of(shape, {48}, {16, 16, 16}), HasSubstr("input: expected 3 pieces, found 48 bytes in 1 piece"));
  EXPECT_THAT(error_of(shape, {4, 4, 4}, {4, 4, 6}),
              HasSubstr("output 2: expected whole elements of 4 bytes, found 6 bytes"));
}

TEST(Call, RefusesARootOutsideTheGroup) {
  EXPECT_EQ(error_of(floats(Op::kBroadcast, 4, 3), {}, {16}),
            "broadcast of 4 float from rank 3, on rank 0 of 3: expected a root of 0 to 2, found 3");
  EXPECT_THAT(error_of(floats(Op::kReduce, 4, -1), {}, {16}), HasSubstr("expected a root of 0 to 2, found -1"));
}

TEST(Call, RefusesCountsThatAreNone) {
  EXPECT_THAT(error_of(floats(Op::kAllReduce, CallShape::kUneven), {}, {16}),
              AllOf(HasSubstr("all_reduce"), HasSubstr("expected a count of 0 to"), HasSubstr("found -1")));
  EXPECT_THAT(error_of(floats(Op::kAllToAll, -2), {48}, {48}), HasSubstr("found -2"));
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 8;  // three times as many bytes do not fit
  EXPECT_THAT(error_of(floats(Op::kAllGather, huge), {16}, {48}), HasSubstr("expected a count of 0 to"));
}

TEST(Call, RefusesAnOperationThatTheTypeHasNot) {
  const CallShape shape{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kBitXor, 0, 4};
  EXPECT_THAT(error_of(shape, {}, {16}), AllOf(HasSubstr("bxor"), HasSubstr("float")));
  const CallShape moved{Op::kBroadcast, ElementType::kOpaque8, ReduceOp::kBitXor, 0, 16};
  EXPECT_EQ(error_of(moved, {}, {16}), "");  // reduces nothing
}

TEST(Call, ARankOutsideTheGroupIsOurMistake) {
  EXPECT_THROW(check_call(call_of({}, {}, {}), 3, 3), InternalError);
  EXPECT_THROW(check_call(call_of({}, {}, {}), -1, 3), InternalError);
}

}  // namespace
}  // namespace downpour::collective
