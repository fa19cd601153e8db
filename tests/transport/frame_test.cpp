#include "csrc/transport/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "csrc/base/checksum.h"
#include "csrc/base/random.h"
#include "csrc/transport/frame_reader.h"
#include "csrc/transport/send_queue.h"
#include "tests/support/allocations.h"

namespace downpour::transport {
namespace {

using testing::HasSubstr;

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

constexpr FrameLimits kLimits{.body_bytes = 1000, .window_bytes = 4096};
constexpr FrameHeader kHeader{.type = 100, .takes_credit = 1, .body_bytes = 17, .bulk_bytes = 96, .bulk_offset = 4000};

HeaderBytes encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  encode_header(header, bytes);
  return bytes;
}

// A header with other bytes at `at` and a checksum that matches them.
template <typename T>
HeaderBytes forged(std::size_t at, T value) {
  HeaderBytes bytes = encoded(kHeader);
  std::memcpy(bytes.data() + at, &value, sizeof(T));
  const auto sum = static_cast<std::uint32_t>(checksum(Bytes(bytes).first(36)));
  std::memcpy(bytes.data() + 36, &sum, sizeof(sum));
  return bytes;
}

std::string why_refused(const HeaderBytes& bytes, const FrameLimits& limits = kLimits) {
  try {
    decode_header(bytes, limits);
    return "accepted";
  } catch (const ProtocolError& error) {
    return error.what();
  }
}

TEST(FrameHeader, ComesBackAsItWent) {
  EXPECT_EQ(decode_header(encoded(kHeader), kLimits), kHeader);
  const FrameHeader plain{.type = kFirstUserType};
  EXPECT_EQ(decode_header(encoded(plain), {.body_bytes = 0, .window_bytes = 0}), plain);
}

TEST(FrameHeader, IsTheSameOnEveryMachine) {
  const HeaderBytes bytes = encoded(kHeader);
  const std::vector<int> expected = {'D', 'N', 'P', 'R', 1, 0, 100, 0, 1, 0, 0, 0,    17,
                                     0,   0,   0,   96,  0, 0, 0,   0, 0, 0, 0, 0xa0, 0x0f};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << "byte " << i;
  }
}

TEST(FrameHeader, EveryFlippedBitIsNoticed) {
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    HeaderBytes bytes = encoded(kHeader);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_NE(why_refused(bytes), "accepted") << "bit " << bit;
  }
}

TEST(FrameHeader, SaysWhatIsWrong) {
  EXPECT_THAT(why_refused(forged(0, std::array{'G', 'E', 'T', ' '})), HasSubstr("'GET '"));
  EXPECT_THAT(why_refused(forged(4, std::uint16_t{9})), HasSubstr("version 9 of the peer is not ours, 1"));
  EXPECT_THAT(why_refused(forged(6, std::uint16_t{0})), HasSubstr("unknown type 0"));
  EXPECT_THAT(why_refused(forged(6, std::uint16_t{63})), HasSubstr("unknown type 63"));
  EXPECT_THAT(why_refused(forged(6, std::uint16_t{7})), HasSubstr("type 7 with bulk bytes or a credit"));
  EXPECT_THAT(why_refused(forged(8, std::uint32_t{2})), HasSubstr("unknown flags 2"));
  EXPECT_THAT(why_refused(forged(32, std::uint32_t{1})), HasSubstr("unknown flags"));
  EXPECT_THAT(why_refused(forged(12, std::uint32_t{1001})), HasSubstr("body of 1001 bytes exceeds the limit of 1000"));
  EXPECT_THAT(why_refused(forged(16, std::uint64_t{97})),
              HasSubstr("97 bulk bytes at offset 4000 lie outside the window of 4096"));
}

TEST(FrameHeader, WindowBoundsDoNotWrap) {
  const std::uint64_t huge = ~std::uint64_t{0};
  for (const auto& [offset, size] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {4096, 1}, {4097, 0}, {0, 4097}, {huge, 1}, {huge, huge}, {1, huge}, {huge - 5, 10}}) {
    EXPECT_THAT(why_refused(encoded({.type = 100, .bulk_bytes = size, .bulk_offset = offset})),
                HasSubstr("outside the window"));
  }
  EXPECT_EQ(why_refused(encoded({.type = 100, .bulk_bytes = 4096})), "accepted");
  EXPECT_EQ(why_refused(encoded({.type = 100, .bulk_offset = 4096})), "accepted");
  EXPECT_EQ(why_refused(encoded({.type = 100, .bulk_bytes = huge}), {.window_bytes = huge}), "accepted");
}

TEST(FrameHeader, OnlyHelloAndRefusalPassVersions) {
  for (std::uint16_t type = 1; type <= 9; ++type) {
    HeaderBytes bytes = encoded({.type = type});
    bytes[4] = std::byte{2};
    const auto sum = static_cast<std::uint32_t>(checksum(Bytes(bytes).first(36)));
    std::memcpy(bytes.data() + 36, &sum, sizeof(sum));
    EXPECT_EQ(why_refused(bytes) == "accepted", type == 1 || type == 6) << "type " << type;
  }
}

// A stream of frames, cut anywhere, comes out as it went in.
struct Stream {
  explicit Stream(std::uint64_t seed) : random(seed), window(1 << 16), expected_window(1 << 16) {
    for (int i = 0; i < 60; ++i) {
      FrameHeader header{.type = static_cast<std::uint16_t>(kFirstUserType + i),
                         .takes_credit = static_cast<std::uint8_t>(i % 2)};
      header.body_bytes = static_cast<std::uint32_t>(random.below(4) == 0 ? random.below(40'000) : random.below(50));
      header.bulk_bytes = random.below(3) == 0 ? random.below(30'000) : random.below(2) * random.below(100);
      header.bulk_offset = random.below(window.size() - header.bulk_bytes + 1);
      headers.push_back(header);
      bodies.push_back(noise(header.body_bytes));
      bulks.push_back(noise(header.bulk_bytes));
    }
  }
  std::vector<std::byte> noise(std::size_t size) {
    std::vector<std::byte> bytes(size);
    std::ranges::generate(bytes, [this] { return static_cast<std::byte>(random.next()); });
    return bytes;
  }
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    for (std::size_t i = 0; i < headers.size(); ++i) {
      const auto header = encoded(headers[i]);
      all.insert(all.end(), header.begin(), header.end());
      all.insert(all.end(), bodies[i].begin(), bodies[i].end());
      all.insert(all.end(), bulks[i].begin(), bulks[i].end());
    }
    return all;
  }
  void check(std::size_t i, const FrameReader::Frame& frame) {
    ASSERT_EQ(frame.header, headers[i]);
    ASSERT_TRUE(std::ranges::equal(frame.body, bodies[i]));
    std::ranges::copy(bulks[i], expected_window.begin() + static_cast<std::ptrdiff_t>(headers[i].bulk_offset));
    ASSERT_EQ(window, expected_window) << "frame " << i;
  }

  Random random;
  std::vector<std::byte> window;
  std::vector<std::byte> expected_window;
  std::vector<FrameHeader> headers;
  std::vector<std::vector<std::byte>> bodies;
  std::vector<std::vector<std::byte>> bulks;
};

// Copies the next bytes of `input` to where the reader wants them, at most `most` of them.
std::size_t feed(FrameReader& reader, Bytes input, std::size_t most) {
  auto space = reader.space();
  std::size_t fed = 0;
  for (int part = 0; part < space.count; ++part) {
    const iovec& where = space.parts[static_cast<std::size_t>(part)];
    const std::size_t size = std::min({where.iov_len, input.size() - fed, most - fed});
    std::memcpy(where.iov_base, input.data() + fed, size);
    fed += size;
  }
  reader.filled(fed);
  return fed;
}

TEST(FrameReader, TakesTheStreamInPiecesOfAnySize) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Stream stream(seed);
    FrameReader reader({.body_bytes = 64 * 1024, .window_bytes = stream.window.size()}, stream.window);
    const auto bytes = stream.bytes();
    std::size_t next = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t most =
          seed % 3 == 0 ? 1 + stream.random.below(3) : 1 + stream.random.below(seed % 3 == 1 ? 5000 : 200'000);
      at += feed(reader, Bytes(bytes).subspan(at), most);
      while (const auto* frame = reader.next()) {
        ASSERT_NO_FATAL_FAILURE(stream.check(next, *frame));
        ++next;
      }
      ASSERT_TRUE(reader.is_mid_frame() || at == bytes.size() || next > 0);
    }
    EXPECT_EQ(next, stream.headers.size());
    EXPECT_FALSE(reader.is_mid_frame());
  }
}

TEST(FrameReader, LargeBulkBytesGoStraightIntoTheWindow) {
  std::vector<std::byte> window(1 << 20);
  FrameReader reader({.body_bytes = 100, .window_bytes = window.size()}, window);
  const auto header = encoded({.type = 100, .bulk_bytes = window.size()});
  feed(reader, header, header.size());
  ASSERT_EQ(reader.next(), nullptr);
  const auto space = reader.space();
  EXPECT_EQ(space.parts[0].iov_base, window.data());
  EXPECT_EQ(space.parts[0].iov_len, window.size());
}

TEST(FrameReader, RefusesBeforeItAllocates) {
  FrameReader reader({.body_bytes = ~std::uint32_t{0} - 1, .window_bytes = 0}, {});
  HeaderBytes header = encoded({.type = 100, .body_bytes = ~std::uint32_t{0}});
  feed(reader, header, header.size());
  EXPECT_THROW(reader.next(), ProtocolError);
}

TEST(SendQueue, GivesBackTheStreamWhateverIsTakenAtOnce) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Stream stream(seed);
    const std::vector<std::byte> expected = stream.bytes();
    SendQueue queue;
    std::vector<std::byte> sent;
    const bool has_pages = seed % 3 == 0;
    const auto take = [&] {
      std::array<iovec, 6> parts;
      const SendQueue::Gathered gathered = queue.gather(parts);
      std::size_t count = gathered.parts;
      const Bytes pages = queue.next_pages();
      EXPECT_EQ(!pages.empty(), gathered.pages_follow && count == 0);
      if (!pages.empty()) {
        parts[count++] = {const_cast<std::byte*>(pages.data()), pages.size()};
      }
      std::size_t left = seed % 2 == 0 ? 1 + stream.random.below(60'000) : 1 + stream.random.below(200);
      std::size_t taken = 0;
      for (std::size_t part = 0; part < count && left > 0; ++part) {
        const auto* begin = static_cast<const std::byte*>(parts[part].iov_base);
        const std::size_t size = std::min(left, parts[part].iov_len);
        sent.insert(sent.end(), begin, begin + size);
        left -= size;
        taken += size;
      }
      queue.consume(taken);
    };
    for (std::size_t i = 0; i < stream.headers.size(); ++i) {
      queue.push(stream.headers[i], stream.bodies[i], stream.bulks[i],
                 has_pages && stream.random.below(2) == 0 ? Way::kByPage : Way::kCopied);
      if (stream.random.below(2) == 0 && !queue.empty()) {
        take();
      }
      if (has_pages) {
        if (stream.random.below(50) == 0) {
          queue.forget_pages();
          EXPECT_TRUE(queue.next_pages().empty());
        }
      } else if (stream.random.below(3) == 0) {
        queue.keep_bulk();
        std::ranges::fill(stream.bulks[i], std::byte{0});  // the queue must not look any more
      }
    }
    while (!queue.empty()) {
      take();
    }
    EXPECT_EQ(sent, expected);
  }
}

TEST(SendQueue, NeverEmptyAndStillAllocatesNothing) {
  if (!kCountsAllocations) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  SendQueue queue;
  const std::array<std::byte, 48> body{};
  const std::array<std::byte, 100> bulk{};
  std::array<iovec, 4> parts;
  const auto step = [&] {
    queue.push(kHeader, body, bulk, Way::kCopied);
    queue.push(kHeader, body, {}, Way::kCopied);
    queue.keep_bulk();
    queue.gather(parts);
    queue.consume(2 * (kFrameHeaderBytes + body.size()) + bulk.size());
  };
  for (int i = 0; i < 5; ++i) {
    queue.push(kHeader, body, bulk, Way::kCopied);
  }
  for (int i = 0; i < 1000; ++i) {
    step();
  }
  const std::uint64_t before = allocations();
  for (int i = 0; i < 100'000; ++i) {
    step();
  }
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace downpour::transport
