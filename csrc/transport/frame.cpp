#include "csrc/transport/frame.h"

#include <array>
#include <cstring>
#include <string>

#include "csrc/base/checksum.h"
#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

// Where the fields lie. Magic, version, type, body_bytes and the checksum stay where they are in all versions.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTypeAt = 6;
constexpr std::size_t kFlagsAt = 8;  // bit 0: takes credit; the others are free and zero
constexpr std::size_t kBodyBytesAt = 12;
constexpr std::size_t kBulkBytesAt = 16;
constexpr std::size_t kBulkOffsetAt = 24;
constexpr std::size_t kReservedAt = 32;  // room for a checksum of the bulk bytes; zero
constexpr std::size_t kChecksumAt = 36;
static_assert(kChecksumAt + sizeof(std::uint32_t) == kFrameHeaderBytes);

constexpr std::uint32_t kTakesCredit = 1;

template <typename T>
void store(std::span<std::byte, kFrameHeaderBytes> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T load(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::uint32_t header_checksum(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  return static_cast<std::uint32_t>(checksum(bytes.first<kChecksumAt>()));
}

// What a stranger sent instead of a frame, readable: "GET " tells more than 47455420.
std::string printable(Bytes bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const char character = static_cast<char>(byte);
    text += character >= ' ' && character <= '~' ? character : '.';
  }
  return text;
}

bool is_version_free(std::uint16_t type) {
  return type == static_cast<std::uint16_t>(FrameType::kHello) ||
         type == static_cast<std::uint16_t>(FrameType::kRefused);
}

void check_origin(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  DOWNPOUR_CHECK_AS(ProtocolError, load<std::uint32_t>(bytes, kMagicAt) == kMagic,
                    "bytes that are no frame: expected 'DNPR', found '", printable(bytes.first<4>()), "'");
  const auto version = load<std::uint16_t>(bytes, kVersionAt);
  DOWNPOUR_CHECK_AS(ProtocolError, version == kProtocolVersion || is_version_free(load<std::uint16_t>(bytes, kTypeAt)),
                    "protocol version ", version, " of the peer is not ours, ", kProtocolVersion);
  DOWNPOUR_CHECK_AS(ProtocolError, load<std::uint32_t>(bytes, kChecksumAt) == header_checksum(bytes),
                    "frame header is damaged: its checksum does not match");
}

void check_flags(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const auto flags = load<std::uint32_t>(bytes, kFlagsAt);
  DOWNPOUR_CHECK_AS(ProtocolError, (flags & ~kTakesCredit) == 0 && load<std::uint32_t>(bytes, kReservedAt) == 0,
                    "frame header: unknown flags ", flags);
}

void check_type(const FrameHeader& header) {
  const bool ours = header.type >= static_cast<std::uint16_t>(FrameType::kHello) &&
                    header.type <= static_cast<std::uint16_t>(FrameType::kGoodbye);
  DOWNPOUR_CHECK_AS(ProtocolError, ours || header.type >= kFirstUserType, "frame of unknown type ", header.type);
  DOWNPOUR_CHECK_AS(ProtocolError, !ours || (header.bulk_bytes == 0 && header.takes_credit == 0), "frame of type ",
                    header.type, " with bulk bytes or a credit");
}

void check_limits(const FrameHeader& header, const FrameLimits& limits) {
  DOWNPOUR_CHECK_AS(ProtocolError, header.body_bytes <= limits.body_bytes, "frame of type ", header.type,
                    ": a body of ", header.body_bytes, " bytes exceeds the limit of ", limits.body_bytes);
  const bool inside =
      header.bulk_offset <= limits.window_bytes && header.bulk_bytes <= limits.window_bytes - header.bulk_offset;
  DOWNPOUR_CHECK_AS(ProtocolError, inside, "frame of type ", header.type, ": ", header.bulk_bytes,
                    " bulk bytes at offset ", header.bulk_offset, " lie outside the window of ", limits.window_bytes,
                    " bytes");
}

}  // namespace

void encode_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out) {
  store(out, kMagicAt, kMagic);
  store(out, kVersionAt, kProtocolVersion);
  store(out, kTypeAt, header.type);
  store(out, kFlagsAt, header.takes_credit != 0 ? kTakesCredit : std::uint32_t{0});
  store(out, kBodyBytesAt, header.body_bytes);
  store(out, kBulkBytesAt, header.bulk_bytes);
  store(out, kBulkOffsetAt, header.bulk_offset);
  store(out, kReservedAt, std::uint32_t{0});
  store(out, kChecksumAt, header_checksum(out));
}

FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes, const FrameLimits& limits) {
  check_origin(bytes);
  check_flags(bytes);
  FrameHeader header;
  header.type = load<std::uint16_t>(bytes, kTypeAt);
  header.takes_credit = static_cast<std::uint8_t>(load<std::uint32_t>(bytes, kFlagsAt) & kTakesCredit);
  header.body_bytes = load<std::uint32_t>(bytes, kBodyBytesAt);
  header.bulk_bytes = load<std::uint64_t>(bytes, kBulkBytesAt);
  header.bulk_offset = load<std::uint64_t>(bytes, kBulkOffsetAt);
  check_type(header);
  check_limits(header, limits);
  return header;
}

}  // namespace downpour::transport
