#include "csrc/base/checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace downpour {
namespace {

// Snapshots on disks hang on it.
TEST(Checksum, is_xxh3) {
  EXPECT_EQ(checksum({}), 0x2D06800538D394C2u);
  EXPECT_EQ(checksum(as_bytes("downpour")), checksum(as_bytes("downpour")));
}

TEST(Checksum, in_parts_equals_the_whole) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  for (const std::size_t part : {1, 3, 64, 1000, 5000}) {
    Checksum sum;
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      sum.add(Bytes(bytes).subspan(at, std::min(part, bytes.size() - at)));
    }
    EXPECT_EQ(sum.value(), checksum(bytes)) << part;
  }
  EXPECT_EQ(Checksum().value(), checksum({}));
}

TEST(Checksum, notices_every_flipped_bit) {
  std::vector<std::byte> bytes(300);
  const std::uint64_t whole = checksum(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{1};
    EXPECT_NE(checksum(bytes), whole);
    bytes[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace downpour
