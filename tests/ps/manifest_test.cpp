#include "csrc/ps/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/checksum.h"
#include "tests/ps/snapshot_samples.h"

namespace downpour::ps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Manifest example() {
  return {3,  4, {1, ~std::uint64_t{0}},   {std::byte{0}, std::byte{0xAB}}, "data.safetensors",
          10, 4, {1, 2, ~std::uint64_t{0}}};
}

std::string text_of(const Manifest& manifest) {
  const auto bytes = encode_manifest(manifest);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string refusal(std::string_view text) {
  try {
    decode_manifest(as_bytes(text), "manifest 'x'");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// A manifest with a field changed and its own checksum right again.
std::string changed(Manifest manifest, const auto& change) {
  change(manifest);
  return refusal(text_of(manifest));
}

TEST(Manifest, round_trip) {
  EXPECT_EQ(decode_manifest(encode_manifest(example()), "x"), example());
  EXPECT_EQ(decode_manifest(encode_manifest({0, 1, {}, {}, "empty", 0, 1, {}}), "x").file_bytes, 0u);
}

TEST(Manifest, refuses_what_is_no_manifest) {
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("manifest 'x'"), HasSubstr("no JSON object")));
  EXPECT_THAT(refusal("[1]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("field 'format' is missing"));
  EXPECT_THAT(refusal(R"({"format":1})"), HasSubstr("'format' is no text"));
  EXPECT_THAT(refusal(R"({"format":"another"})"), HasSubstr("another version of Downpour"));
  EXPECT_THAT(refusal("[[[[[[["), HasSubstr("nested deeper"));
}

TEST(Manifest, its_own_checksum_guards_every_field) {
  std::string text = text_of(example());
  const std::size_t at = text.find("data.safetensors");
  text[at] = 'D';
  EXPECT_THAT(refusal(text), AllOf(HasSubstr(concat("bytes 0 to ", text.size())), HasSubstr("expected checksum")));
}

TEST(Manifest, refuses_fields_that_contradict_each_other) {
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.checksums.pop_back(); }),
              HasSubstr("2 checksums of blocks of 4 bytes"));
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.block_bytes = 0; }), HasSubstr("do not cover"));
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.file_bytes = ~std::uint64_t{0}; }), HasSubstr("do not cover"));
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.shard = -1; }), HasSubstr("'shard' is no number >= 0"));
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.shard_count = 2'000'000; }),
              HasSubstr("a shard number of 2000000"));
  EXPECT_THAT(changed(example(), [](Manifest& m) { m.file = "a/b"; }), HasSubstr("no plain file name"));
  EXPECT_EQ(changed(example(), [](Manifest&) {}), "accepted");
}

TEST(Manifest, check_file_names_the_first_bad_block) {
  const std::vector<std::byte> file(10, std::byte{5});
  Manifest manifest = example();
  manifest.checksums = block_checksums(file, 4);
  ASSERT_EQ(manifest.checksums.size(), 3u);
  EXPECT_NO_THROW(check_file(manifest, file, "x"));
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::vector<std::byte> bad = file;
    bad[i] = std::byte{6};
    const std::size_t begin = i / 4 * 4;
    EXPECT_THAT([&] { check_file(manifest, bad, "x"); },
                ThrowsMessage<Error>(HasSubstr(concat("bytes ", begin, " to ", std::min<std::size_t>(begin + 4, 10)))));
  }
  EXPECT_THAT([&] { check_file(manifest, Bytes(file).first(7), "x"); },
              ThrowsMessage<Error>(HasSubstr("bytes 7 to 10 are missing")));
  EXPECT_THAT([&] { check_file(manifest, std::vector<std::byte>(11), "x"); },
              ThrowsMessage<Error>(HasSubstr("found 11")));
}

}  // namespace
}  // namespace downpour::ps
