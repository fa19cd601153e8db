#include "csrc/ps/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "csrc/base/random.h"

namespace downpour::ps {
namespace {

using testing::HasSubstr;
using testing::Optional;
using testing::ThrowsMessage;

Schema example() {
  Schema schema;
  schema.parameters = {{"conv1.weight", {6, 1, 5, 5}, Dtype::kFloat32, 0},
                       {"conv1.bias", {6}, Dtype::kFloat32, 1},
                       {"empty", {0, 3}, Dtype::kFloat64, 0},
                       {"scale", {}, Dtype::kFloat64, 1},
                       {"größe", {2}, Dtype::kFloat32, 0}};
  schema.groups = 2;
  schema.rule = RuleKind::kAdam;
  schema.momentum_buffers = 1;
  return schema;
}

template <typename Change>
std::string refusal(const Change& change) {
  Schema schema = example();
  change(schema);
  try {
    decode_schema(schema.encode());
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Schema, round_trip) {
  EXPECT_EQ(decode_schema(example().encode()), example());
  EXPECT_EQ(decode_schema(Schema{}.encode()), Schema{});
  EXPECT_EQ(decode_schema(example().encode()).hash(), example().hash());
}

TEST(Schema, hash_depends_on_every_field) {
  const auto hash_after = [](auto change) {
    Schema schema = example();
    change(schema);
    return schema.hash();
  };
  const std::uint64_t hash = example().hash();
  EXPECT_NE(hash, hash_after([](Schema& s) { s.rule = RuleKind::kAdamW; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.groups = 3; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.momentum_buffers = 0; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.parameters[0].name = "conv2.weight"; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.parameters[0].shape = {6, 5, 1, 5}; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.parameters[0].dtype = Dtype::kFloat64; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { s.parameters[0].group = 1; }));
  EXPECT_NE(hash, hash_after([](Schema& s) { std::swap(s.parameters[0], s.parameters[1]); }));
}

TEST(Schema, numel_is_a_checked_product) {
  const auto numel = [](std::vector<std::int64_t> shape) {
    return ParameterSpec{"p", std::move(shape), Dtype::kFloat32, 0}.numel();
  };
  EXPECT_EQ(numel({}), 1);
  EXPECT_EQ(numel({2, 3, 4}), 24);
  EXPECT_EQ(numel({0, std::int64_t{1} << 62, 8}), 0);
  EXPECT_EQ(numel({std::int64_t{1} << 62, 8, 0}), 0);
  EXPECT_THAT(
      [&] {
        numel({std::int64_t{1} << 32, std::int64_t{1} << 31});
      },
      ThrowsMessage<Error>(HasSubstr("'p' [4294967296")));
}

TEST(Schema, decode_refuses_what_is_no_schema) {
  EXPECT_THAT(refusal([](Schema& s) { s.rule = static_cast<RuleKind>(5); }), HasSubstr("update rule 5"));
  EXPECT_THAT(refusal([](Schema& s) { s.momentum_buffers = 2; }), HasSubstr("2 momentum buffers"));
  EXPECT_THAT(refusal([](Schema& s) { s.groups = 0; }), HasSubstr("0 parameter groups"));
  EXPECT_THAT(refusal([](Schema& s) { s.groups = 1; }), HasSubstr("'conv1.bias' is in group 1 of 1"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].dtype = static_cast<Dtype>(3); }), HasSubstr("dtype 3"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].shape = std::vector<std::int64_t>(9, 1); }),
              HasSubstr("9 dimensions"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].shape = {-1}; }), HasSubstr("dimension of -1"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].shape = {1ll << 62, 2}; }), HasSubstr("more than 2^63"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].shape = {1ll << 61}; }), HasSubstr("more than 2^63 - 1 bytes"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[0].shape = s.parameters[1].shape = {1ll << 60}; }),
              HasSubstr("more than 2^63 - 1 bytes"));
  EXPECT_THAT(refusal([](Schema& s) { s.parameters[1].name = "conv1.weight"; }),
              HasSubstr("'conv1.weight' comes twice"));
}

TEST(Schema, names_are_printable_utf8) {
  const auto with_name = [](std::string name) { return refusal([&](Schema& s) { s.parameters[0].name = name; }); };
  for (const char* bad : {"", "a\nb", "a\x7f", "\x80", "\xC3", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
                          "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "a\xE2\x82"}) {
    EXPECT_THAT(with_name(bad), HasSubstr("name")) << bad;
  }
  for (const char* good : {"a.b", "a b", "\xC3\xBC", "\xE2\x82\xAC", "\xF0\x9F\x8C\xA7", "\"quoted\\\""}) {
    EXPECT_EQ(with_name(good), "accepted") << good;
  }
  EXPECT_EQ(with_name(std::string(1024, 'x')), "accepted");
  EXPECT_THAT(with_name(std::string(1025, 'x')), HasSubstr("1025 bytes"));
}

TEST(Schema, decode_refuses_every_truncation_and_a_byte_too_many) {
  std::vector<std::byte> bytes = example().encode();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode_schema(Bytes(bytes).first(length)), ProtocolError) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_schema(bytes), ProtocolError);
}

TEST(Schema, a_count_that_does_not_fit_is_refused_before_allocation) {
  std::vector<std::byte> bytes = Schema{}.encode();
  std::fill(bytes.end() - 4, bytes.end(), std::byte{0xFF});
  EXPECT_THAT([&] { decode_schema(bytes); }, ThrowsMessage<ProtocolError>(HasSubstr("4294967295")));
}

// Whatever is accepted means what its bytes say.
TEST(Schema, flipped_bytes_are_refused_or_decoded_faithfully) {
  const std::vector<std::byte> bytes = example().encode();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> flipped = bytes;
      flipped[i] ^= static_cast<std::byte>(1 << bit);
      try {
        EXPECT_EQ(decode_schema(flipped).encode(), flipped);
      } catch (const ProtocolError&) {
      }
    }
  }
}

TEST(Schema, first_difference_names_both_sides) {
  const auto difference = [](auto change) {
    Schema there = example();
    change(there);
    return first_difference(example(), there);
  };
  EXPECT_EQ(difference([](Schema&) {}), std::nullopt);
  EXPECT_EQ(difference([](Schema& s) {
              s.parameters[0].shape = {6, 1, 3, 3};
            }),
            "parameter 0: 'conv1.weight' float32 [6, 1, 5, 5] here, 'conv1.weight' float32 [6, 1, 3, 3] there");
  EXPECT_EQ(difference([](Schema& s) { s.parameters[3].dtype = Dtype::kFloat32; }),
            "parameter 3: 'scale' float64 [] in group 1 here, 'scale' float32 [] in group 1 there");
  EXPECT_THAT(difference([](Schema& s) { s.parameters.pop_back(); }),
              Optional(HasSubstr("'größe' float32 [2] here, none there (5 parameters here, 4 there)")));
  EXPECT_THAT(difference([](Schema& s) {
                s.parameters.push_back({"more", {1}, Dtype::kFloat32, 0});
              }),
              Optional(HasSubstr("none here, 'more' float32 [1] there")));
  EXPECT_THAT(difference([](Schema& s) { s.rule = RuleKind::kSgd; }), Optional(HasSubstr("Adam here, SGD there")));
  EXPECT_THAT(difference([](Schema& s) { s.groups = 7; }), Optional(HasSubstr("2 here, 7 there")));
  EXPECT_THAT(difference([](Schema& s) { s.momentum_buffers = 0; }), Optional(HasSubstr("1 here, 0 there")));
}

TEST(Schema, rules_have_names) {
  EXPECT_EQ(name(RuleKind::kSgd), "SGD");
  EXPECT_EQ(name(RuleKind::kAdagrad), "Adagrad");
  EXPECT_EQ(name(RuleKind::kAdam), "Adam");
  EXPECT_EQ(name(RuleKind::kAdamW), "AdamW");
}

}  // namespace
}  // namespace downpour::ps
