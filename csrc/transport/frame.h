#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "csrc/base/bytes.h"

// The unit of the wire: a fixed header, a small body, then bulk bytes that go straight into the receiver's window.
namespace downpour::transport {

constexpr std::uint32_t kMagic = 0x52504e44;  // "DNPR"
constexpr std::uint16_t kProtocolVersion = 1;
constexpr std::size_t kFrameHeaderBytes = 40;

// Types below kFirstUserType belong to the transport; the rest to the layer above.
enum class FrameType : std::uint16_t {
  kHello = 1,    // client's first frame
  kOffer = 2,    // server: shared memory may be had at this local socket
  kDecline = 3,  // client: it may not; go on here
  kClaim = 4,    // client, on the local socket: I am the one of that offer
  kWelcome = 5,  // server: admitted; windows and credits
  kRefused = 6,  // server: not admitted, and why; then it closes
  kHeartbeat = 7,
  kCredit = 8,   // the receiver returns credits
  kGoodbye = 9,  // orderly close: what follows an end of file is no loss
};
constexpr std::uint16_t kFirstUserType = 64;

struct FrameHeader {
  std::uint16_t type = 0;
  std::uint8_t takes_credit = 0;
  std::uint32_t body_bytes = 0;
  std::uint64_t bulk_bytes = 0;
  std::uint64_t bulk_offset = 0;  // in the receiver's window
  bool operator==(const FrameHeader&) const = default;
};

struct FrameLimits {
  std::uint32_t body_bytes = 64 * 1024;
  std::uint64_t window_bytes = 0;  // 0: no bulk bytes at all
};

void encode_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);
// Checks magic, version, checksum of the header, and the limits, before anything is allocated. Headers of kHello and kRefused
// keep their layout in all versions and are decoded whatever their version, so that two versions can tell each other why not.
// Errors: ProtocolError that says expected and found.
FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes, const FrameLimits& limits);

}  // namespace downpour::transport
