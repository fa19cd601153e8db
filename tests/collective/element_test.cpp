#include "csrc/collective/element.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <complex>
#include <cstddef>
#include <set>
#include <string>

namespace downpour::collective {
namespace {

using testing::ThrowsMessage;

struct Row {
  ElementType type;
  std::size_t size;
  std::string_view name;
  std::string_view ops;  // one digit for each value of ReduceOp
};

constexpr Row kRows[] = {
    {ElementType::kBool, sizeof(bool), "bool", "1345678"},
    {ElementType::kUint8, sizeof(std::uint8_t), "unsigned char", "1345678"},
    {ElementType::kInt8, sizeof(std::int8_t), "signed char", "1345678"},
    {ElementType::kUint16, sizeof(std::uint16_t), "unsigned short", "1345678"},
    {ElementType::kInt16, sizeof(std::int16_t), "short", "1345678"},
    {ElementType::kUint32, sizeof(std::uint32_t), "unsigned int", "1345678"},
    {ElementType::kInt32, sizeof(std::int32_t), "int", "1345678"},
    {ElementType::kUint64, sizeof(std::uint64_t), "unsigned long", "1345678"},
    {ElementType::kInt64, sizeof(std::int64_t), "long", "1345678"},
    {ElementType::kFloat16, 2, "c10::Half", "12345"},
    {ElementType::kBfloat16, 2, "c10::BFloat16", "12345"},
    {ElementType::kFloat32, sizeof(float), "float", "12345"},
    {ElementType::kFloat64, sizeof(double), "double", "12345"},
    {ElementType::kComplex64, sizeof(std::complex<float>), "c10::complex<float>", "123"},
    {ElementType::kComplex128, sizeof(std::complex<double>), "c10::complex<double>", "123"},
    {ElementType::kOpaque8, 1, "bytes", ""},
};

TEST(Element, has_a_size_and_a_name_for_every_type) {
  std::set<std::string_view> names;
  for (const Row& row : kRows) {
    EXPECT_EQ(size_bytes(row.type), static_cast<std::int64_t>(row.size)) << row.name;
    EXPECT_EQ(name(row.type), row.name);
    names.insert(row.name);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kLastElementType));
}

TEST(Element, has_a_name_for_every_operation) {
  const std::string_view names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  EXPECT_EQ(std::size(names), static_cast<std::size_t>(kLastReduceOp));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(name(static_cast<ReduceOp>(i + 1)), names[i]);
  }
}

TEST(Element, supports_the_pairs_of_the_contract_and_no_other) {
  for (const Row& row : kRows) {
    for (int op = 1; op <= static_cast<int>(kLastReduceOp); ++op) {
      const bool expected = row.ops.find(static_cast<char>('0' + op)) != std::string_view::npos;
      EXPECT_EQ(is_supported(row.type, static_cast<ReduceOp>(op)), expected) << row.name << " " << op;
      if (expected) {
        EXPECT_NO_THROW(check_supported(row.type, static_cast<ReduceOp>(op)));
      } else {
        EXPECT_THROW(check_supported(row.type, static_cast<ReduceOp>(op)), Error);
      }
    }
  }
}

TEST(Element, an_unsupported_pair_hears_what_there_is) {
  EXPECT_THAT([] { check_supported(ElementType::kInt64, ReduceOp::kAverage); },
              ThrowsMessage<Error>("reduction: there is no avg of long; there are sum, product, min, max, band, bor "
                                   "and bxor"));
  EXPECT_THAT([] { check_supported(ElementType::kBfloat16, ReduceOp::kBitOr); },
              ThrowsMessage<Error>("reduction: there is no bor of c10::BFloat16; there are sum, avg, product, min and "
                                   "max"));
  EXPECT_THAT(
      [] { check_supported(ElementType::kComplex64, ReduceOp::kMaximum); },
      ThrowsMessage<Error>("reduction: there is no max of c10::complex<float>; there are sum, avg and product"));
  EXPECT_THAT([] { check_supported(ElementType::kOpaque8, ReduceOp::kSum); },
              ThrowsMessage<Error>("reduction: there is no sum of bytes; they are only moved"));
}

TEST(Element, a_value_that_is_none_is_our_own_mistake) {
  EXPECT_THROW(size_bytes(static_cast<ElementType>(0)), InternalError);
  EXPECT_THROW(name(static_cast<ElementType>(17)), InternalError);
  EXPECT_THROW(name(static_cast<ReduceOp>(9)), InternalError);
}

}  // namespace
}  // namespace downpour::collective
