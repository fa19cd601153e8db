#include "csrc/base/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace downpour {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(JsonText, nesting_is_limited) {
  EXPECT_NO_THROW(check_json_depth(R"({"a": [1, {"b": []}], "c": [[]]})", 4, "text"));
  EXPECT_THAT([] { check_json_depth("[[[[[", 4, "text"); },
              ThrowsMessage<Error>(HasSubstr("text: byte 4: nested deeper than 4")));
  EXPECT_THROW(check_json_depth(std::string(1'000'000, '{'), 8, "text"), Error);
}

TEST(JsonText, brackets_in_strings_do_not_count) {
  EXPECT_NO_THROW(check_json_depth(R"(["[[[[[[", "\"[[[[[", "\\"])", 1, "text"));
  EXPECT_THROW(check_json_depth(R"(["\\", [[[]]]])", 3, "text"), Error);
  EXPECT_NO_THROW(check_json_depth("\"\\", 0, "text"));
}

}  // namespace
}  // namespace downpour
