#include "csrc/base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Bytes, round_trip) {
  Writer out;
  out.put(std::uint8_t{7}).put(std::int64_t{-5}).put(2.5).put_string("text").put_bytes(as_bytes("\0x")).put_string("");
  Reader in(out.bytes(), "message");
  EXPECT_EQ(in.get<std::uint8_t>(), 7);
  EXPECT_EQ(in.get<std::int64_t>(), -5);
  EXPECT_EQ(in.get<double>(), 2.5);
  EXPECT_EQ(in.get_string(), "text");
  EXPECT_EQ(in.get_bytes().size(), as_bytes("\0x").size());
  EXPECT_EQ(in.get_string(), "");
  EXPECT_EQ(in.left(), 0u);
  EXPECT_NO_THROW(in.finish());
}

TEST(Bytes, numbers_are_little_endian_without_padding) {
  Writer out;
  out.put(std::uint8_t{1}).put(std::uint32_t{0x04030201});
  ASSERT_EQ(out.bytes().size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out.bytes()[1 + i], static_cast<std::byte>(i + 1));
  }
}

TEST(Bytes, clear_keeps_the_memory) {
  Writer out;
  out.put_string("some text that needs memory");
  const std::byte* const before = out.bytes().data();
  out.clear();
  EXPECT_EQ(out.bytes().size(), 0u);
  out.put_string("other text");
  EXPECT_EQ(out.bytes().data(), before);
}

TEST(Bytes, take_hands_over_what_was_written) {
  Writer out;
  out.put(std::uint16_t{3});
  EXPECT_EQ(out.take().size(), 2u);
}

TEST(Bytes, every_truncation_is_refused_naming_the_message) {
  Writer out;
  out.put(std::uint32_t{9}).put_string("text").put(1.0);
  for (std::size_t length = 0; length < out.bytes().size(); ++length) {
    Reader in(out.bytes().first(length), "greeting");
    EXPECT_THAT(([&] {
                  in.get<std::uint32_t>();
                  in.get_string();
                  in.get<double>();
                }),
                ThrowsMessage<ProtocolError>(HasSubstr("greeting: truncated")));
  }
}

TEST(Bytes, bytes_left_over_are_refused) {
  Reader in(as_bytes("abc"), "greeting");
  in.take(1);
  EXPECT_THAT([&] { in.finish(); }, ThrowsMessage<ProtocolError>(HasSubstr("greeting: 2 bytes too many")));
}

TEST(Bytes, a_count_must_fit_the_bytes_left) {
  Writer out;
  out.put(std::uint32_t{3}).put(std::uint64_t{0}).put(std::uint64_t{0});
  const auto count = [&](std::size_t item_bytes) { return Reader(out.bytes(), "list").get_count(item_bytes); };
  EXPECT_EQ(count(5), 3u);
  EXPECT_THAT([&] { count(6); },
              ThrowsMessage<ProtocolError>(HasSubstr("list: a count of 3 items of at least 6 bytes")));
  EXPECT_THAT([&] { count(~std::size_t{0}); }, ThrowsMessage<ProtocolError>(HasSubstr("count of 3")));
}

TEST(Bytes, a_length_beyond_the_message_is_refused_before_allocation) {
  Writer out;
  out.put(~std::uint32_t{0}).put(std::uint8_t{1});
  EXPECT_THROW(Reader(out.bytes(), "list").get_string(), ProtocolError);
}

}  // namespace
}  // namespace downpour
