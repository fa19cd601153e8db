#include "csrc/transport/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "csrc/base/random.h"

namespace downpour::transport {
namespace {

using testing::HasSubstr;

std::vector<std::byte> some_bytes(std::size_t size) { return std::vector<std::byte>(size, std::byte{0x5a}); }

Hello full_hello() {
  Hello hello;
  hello.build = "1.2.3+torch2.15";
  hello.job = 0x0123456789abcdef;
  hello.role = Role::kServer;
  hello.rank = 2'000'000'000;
  hello.incarnation = 4'000'000'000;
  hello.schema = ~std::uint64_t{0};
  hello.wants_shared_memory = 1;
  hello.auth = some_bytes(32);
  hello.body = some_bytes(1000);
  return hello;
}

TEST(Handshake, EveryFrameComesBackAsItWent) {
  EXPECT_EQ(decode_hello(encode(full_hello())), full_hello());
  EXPECT_EQ(decode_hello(encode(Hello{})), Hello{});

  const Offer offer = decode_offer(encode(Offer{{1, ~std::uint64_t{0}}, "downpour-abc"}));
  EXPECT_EQ(offer.nonce[1], ~std::uint64_t{0});
  EXPECT_EQ(offer.socket_name, "downpour-abc");

  EXPECT_EQ(decode_claim(encode(Claim{{3, 4}})).nonce[1], 4u);

  const Welcome welcome = decode_welcome(encode(Welcome{1ull << 40, 7, 9, some_bytes(3000)}));
  EXPECT_EQ(welcome.to_acceptor_window_bytes, 1ull << 40);
  EXPECT_EQ(welcome.to_connector_window_bytes, 7u);
  EXPECT_EQ(welcome.credits, 9u);
  EXPECT_EQ(welcome.body, some_bytes(3000));

  EXPECT_EQ(decode_refusal(encode(Refusal{"not you"})).reason, "not you");
}

// Cut short anywhere, or with a byte too many, none of them is taken for another.
TEST(Handshake, BytesThatAreCutShortOrTooManyAreRefused) {
  const auto check = [](std::vector<std::byte> bytes, const auto& decode) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(decode(Bytes(bytes).first(size)), ProtocolError) << size;
    }
    bytes.push_back(std::byte{0});
    EXPECT_THROW(decode(Bytes(bytes)), ProtocolError);
  };
  check(encode(full_hello()), decode_hello);
  check(encode(Offer{{1, 2}, "name"}), decode_offer);
  check(encode(Claim{{1, 2}}), decode_claim);
  check(encode(Welcome{1, 2, 3, some_bytes(20)}), decode_welcome);
  check(encode(Refusal{"because"}), decode_refusal);
  check(handshake_frame(FrameType::kClaim, encode(Claim{{1, 2}})), decode_handshake_frame);
}

TEST(Handshake, AHelloOfAnotherVersionSaysWhichAndNoMore) {
  Hello other = full_hello();
  other.protocol = 2;
  std::vector<std::byte> bytes = encode(other);
  bytes.resize(2 + 4 + other.build.size() + 3);  // whatever that version has behind its build name
  const Hello decoded = decode_hello(bytes);
  EXPECT_EQ(decoded.protocol, 2);
  EXPECT_EQ(decoded.build, other.build);
  EXPECT_EQ(decoded.job, 0u);
}

TEST(Handshake, FieldsAreChecked) {
  const auto with_byte = [](std::size_t at, int value) {
    Hello nameless;
    nameless.build.clear();
    std::vector<std::byte> bytes = encode(nameless);
    bytes[at] = static_cast<std::byte>(value);
    return bytes;
  };
  EXPECT_THROW(decode_hello(with_byte(14, 0)), ProtocolError);  // role
  EXPECT_THROW(decode_hello(with_byte(14, 5)), ProtocolError);
  EXPECT_THROW(decode_hello(with_byte(18, 0x80)), ProtocolError);  // rank
  EXPECT_THROW(decode_hello(with_byte(31, 2)), ProtocolError);     // wants shared memory
  EXPECT_THROW(decode_hello(with_byte(5, 0xff)), ProtocolError);   // a build name of 4 GiB
  EXPECT_THROW(decode_offer(encode(Offer{{1, 2}, ""})), ProtocolError);
  EXPECT_THROW(decode_offer(encode(Offer{{1, 2}, std::string(200, 'x')})), ProtocolError);
  EXPECT_THROW(decode_offer(encode(Offer{{1, 2}, std::string("a\0b", 3)})), ProtocolError);
}

TEST(Handshake, TextOfAStrangerCannotBreakALogLine) {
  std::vector<std::byte> bytes = encode(full_hello());
  bytes[8] = std::byte{'\n'};
  EXPECT_THROW(decode_hello(bytes), ProtocolError);
  EXPECT_EQ(decode_refusal(encode(Refusal{"a\nb\x1b[31m"})).reason, "a.b.[31m");
}

TEST(Handshake, WhatDoesNotFitIsTheCallersMistake) {
  Hello hello;
  hello.body = some_bytes(kLargestHandshakeBytes);
  EXPECT_THROW(encode(hello), Error);
  EXPECT_THROW(encode(Welcome{0, 0, 0, some_bytes(kLargestHandshakeBytes)}), Error);
  hello = Hello{};
  hello.build = "two\nlines";
  EXPECT_THROW(encode(hello), Error);
  hello.build = std::string(1000, 'x');
  EXPECT_THROW(encode(hello), Error);
  hello = Hello{};
  hello.rank = -1;
  EXPECT_THROW(encode(hello), Error);
  EXPECT_LE(encode(Refusal{std::string(100'000, 'x')}).size(), kHandshakeLimits.body_bytes);
}

TEST(Handshake, AFrameIsOnePieceWithinTheLimits) {
  const auto bytes = handshake_frame(FrameType::kOffer, encode(Offer{{1, 2}, "name"}));
  const HandshakeFrame frame = decode_handshake_frame(bytes);
  EXPECT_TRUE(frame.is(FrameType::kOffer));
  EXPECT_FALSE(frame.is(FrameType::kHello));
  EXPECT_EQ(decode_offer(frame.body).socket_name, "name");
  EXPECT_THROW(decode_handshake_frame(handshake_frame(FrameType::kHello, some_bytes(kLargestHandshakeBytes))),
               ProtocolError);
}

TEST(Handshake, RandomBytesAreRefusedOrMeanWhatTheySay) {
  Random random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = encode(full_hello());
    for (std::uint64_t flips = 1 + random.below(3); flips > 0; --flips) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    try {
      const Hello hello = decode_hello(bytes);
      if (hello.protocol == kProtocolVersion) {
        EXPECT_EQ(encode(hello), bytes);
      }
    } catch (const ProtocolError&) {
    }
  }
}

}  // namespace
}  // namespace downpour::transport
