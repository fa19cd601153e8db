#include "csrc/base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

SafetensorsHeader example() {
  SafetensorsHeader header;
  header.metadata = {{"made by", "a \"test\""}};
  header.tensors = {
      {"b", "F64", {2, 3}, 0, 0}, {"a", "U8", {5}, 0, 0}, {"none", "F32", {0}, 0, 0}, {"one", "I64", {}, 0, 0}};
  return header;
}

std::vector<std::byte> file_with(std::string_view json, std::size_t data_bytes) {
  Writer out;
  out.put(static_cast<std::uint64_t>(json.size()));
  std::vector<std::byte> file = out.take();
  file.insert(file.end(), as_bytes(json).begin(), as_bytes(json).end());
  file.resize(file.size() + data_bytes);
  return file;
}

std::string refusal(std::string_view json, std::size_t data_bytes) {
  try {
    decode_safetensors_header(file_with(json, data_bytes), 1 << 20, "file");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Safetensors, round_trip) {
  SafetensorsHeader header = example();
  std::vector<std::byte> file = encode_safetensors_header(header);
  EXPECT_EQ(file.size(), header.data_begin);
  EXPECT_EQ(header.data_begin % 64, 0u);
  EXPECT_EQ(header.tensors.back().end, 48u + 5 + 0 + 8);
  file.resize(file.size() + header.tensors.back().end);
  const SafetensorsHeader found = decode_safetensors_header(file, 1 << 20, "file");
  EXPECT_EQ(found.metadata, header.metadata);
  EXPECT_EQ(found.data_begin, header.data_begin);
  EXPECT_EQ(found.tensors, header.tensors);
}

TEST(Safetensors, knows_element_sizes) {
  EXPECT_EQ(safetensors_element_bytes("F32"), 4u);
  EXPECT_EQ(safetensors_element_bytes("F64"), 8u);
  EXPECT_EQ(safetensors_element_bytes("BF16"), 2u);
  EXPECT_EQ(safetensors_element_bytes("F8"), 0u);
}

TEST(Safetensors, encode_refuses_what_no_file_can_hold) {
  const auto encode = [](TensorEntry tensor) {
    SafetensorsHeader header;
    header.tensors = {std::move(tensor)};
    encode_safetensors_header(header);
  };
  EXPECT_THAT([&] { encode({"a", "F8", {1}, 0, 0}); }, ThrowsMessage<Error>(HasSubstr("unknown dtype 'F8'")));
  EXPECT_THAT([&] { encode({"a", "F32", {-1}, 0, 0}); }, ThrowsMessage<Error>(HasSubstr("dimension of -1")));
  EXPECT_THAT(
      [&] {
        encode({"a", "F32", {1ll << 62}, 0, 0});
      },
      ThrowsMessage<Error>(HasSubstr("impossible dimension")));
  EXPECT_THAT([&] { encode({"\xFF", "F32", {1}, 0, 0}); }, ThrowsMessage<Error>(HasSubstr("not UTF-8")));
}

TEST(Safetensors, accepts_files_of_others) {
  EXPECT_EQ(refusal(R"({"w":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}}   )", 8), "accepted");
  EXPECT_EQ(refusal("{}", 0), "accepted");
}

TEST(Safetensors, the_headers_length_is_checked_before_it_is_used) {
  std::vector<std::byte> file = file_with("{}", 0);
  for (std::size_t length = 0; length < file.size(); ++length) {
    EXPECT_THROW(decode_safetensors_header(Bytes(file).first(length), 1 << 20, "file"), Error) << length;
  }
  EXPECT_THAT([&] { decode_safetensors_header(file, 1, "file"); }, ThrowsMessage<Error>(HasSubstr("the limit is 1")));
  std::fill(file.begin(), file.begin() + 8, std::byte{0xFF});
  EXPECT_THAT([&] { decode_safetensors_header(file, ~std::uint64_t{0}, "file"); },
              ThrowsMessage<Error>(HasSubstr("bytes 0 to 7: a header of 18446744073709551615 bytes")));
}

TEST(Safetensors, refuses_headers_that_say_something_else) {
  EXPECT_THAT(refusal("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("{", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("{\"\xFF\":1}", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal(R"({"w":[[[[1]]]]})", 0), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal(R"({"w":1})", 0), HasSubstr("'w' is no JSON object"));
  EXPECT_THAT(refusal(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("no field 'dtype'"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("the dtype is no text"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), HasSubstr("numbers >= 0"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4), HasSubstr("numbers >= 0"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4),
              HasSubstr("at most 8"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4),
              HasSubstr("impossible"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})", 4),
              HasSubstr("impossible"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), HasSubstr("needs 8 bytes"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
              HasSubstr("two ascending offsets"));
  EXPECT_THAT(refusal(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4]}})", 4),
              HasSubstr("two ascending offsets"));
  EXPECT_THAT(refusal(R"({"__metadata__":1})", 0), HasSubstr("__metadata__ is no JSON object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("'a' is no text"));
}

TEST(Safetensors, tensors_cover_the_data_exactly) {
  const std::string_view a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_THAT(refusal(concat("{", a, "}"), 5), HasSubstr("end at data byte 4, the file has 5"));
  EXPECT_THAT(refusal(concat("{", a, "}"), 3), HasSubstr("end at data byte 4, the file has 3"));
  EXPECT_THAT(refusal(concat("{", a, R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})"), 6),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(concat("{", a, R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})"), 9),
              HasSubstr("hole"));
}

}  // namespace
}  // namespace downpour
