// Streams of frames: whatever the bytes are and however they are cut into reads, they are refused or mean the same; nothing is
// written outside the window.
//
// The first byte says how to read the rest: bit 0 has the origin and checksum of each header put right, so that what comes behind
// them is reached; the others choose how much one read brings.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/checksum.h"
#include "csrc/transport/frame_reader.h"

namespace {

using namespace downpour;
using namespace downpour::transport;

constexpr FrameLimits kLimits{.body_bytes = 3000, .window_bytes = 5000};
constexpr std::size_t kMargin = 64;

// What a reader made of a stream.
struct Outcome {
  Checksum frames;
  std::uint64_t count = 0;
  std::string error;
  std::vector<std::byte> memory = std::vector<std::byte>(kLimits.window_bytes + 2 * kMargin, std::byte{0x77});
  MutableBytes window() { return MutableBytes(memory).subspan(kMargin, kLimits.window_bytes); }
};

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void note(Outcome& outcome, const FrameReader::Frame& frame) {
  const FrameHeader& header = frame.header;
  require(frame.body.size() == header.body_bytes && header.body_bytes <= kLimits.body_bytes);
  require(header.bulk_offset <= kLimits.window_bytes && header.bulk_bytes <= kLimits.window_bytes - header.bulk_offset);
  std::array<std::byte, kFrameHeaderBytes> again{};
  encode_header(header, again);
  require(decode_header(again, kLimits) == header);
  outcome.frames.add(again);
  outcome.frames.add(frame.body);
  outcome.frames.add(outcome.window().subspan(header.bulk_offset, header.bulk_bytes));
  ++outcome.count;
}

void read(Outcome& outcome, Bytes stream, std::size_t most) {
  FrameReader reader(kLimits, outcome.window());
  try {
    while (!stream.empty()) {
      const auto space = reader.space();
      std::size_t filled = 0;
      for (int part = 0; part < space.count; ++part) {
        const iovec& where = space.parts[static_cast<std::size_t>(part)];
        const std::size_t size = std::min({where.iov_len, stream.size(), most - filled});
        std::memcpy(where.iov_base, stream.data(), size);
        stream = stream.subspan(size);
        filled += size;
      }
      require(filled > 0);
      reader.filled(filled);
      while (const auto* frame = reader.next()) {
        note(outcome, *frame);
      }
    }
  } catch (const ProtocolError& error) {
    outcome.error = error.what();
  }
  require(std::ranges::all_of(Bytes(outcome.memory).first(kMargin),
                              [](std::byte byte) { return byte == std::byte{0x77}; }));
  require(
      std::ranges::all_of(Bytes(outcome.memory).last(kMargin), [](std::byte byte) { return byte == std::byte{0x77}; }));
}

// Puts right what random bytes would never hit: magic, version, reserved bytes, checksum; and keeps lengths small.
void repair(std::vector<std::byte>& stream) {
  for (std::size_t at = 0; stream.size() - at >= kFrameHeaderBytes;) {
    std::byte* header = stream.data() + at;
    std::memcpy(header, "DNPR\1\0", 6);
    header[8] &= std::byte{1};
    std::memset(header + 9, 0, 3);
    header[14] = header[15] = std::byte{0};
    std::memset(header + 18, 0, 6);
    std::memset(header + 32, 0, 4);
    const auto sum = static_cast<std::uint32_t>(checksum(Bytes(header, 36)));
    std::memcpy(header + 36, &sum, sizeof(sum));
    std::uint32_t body_bytes = 0;
    std::uint64_t bulk_bytes = 0;
    std::memcpy(&body_bytes, header + 12, sizeof(body_bytes));
    std::memcpy(&bulk_bytes, header + 16, sizeof(bulk_bytes));
    at += std::min(stream.size() - at, kFrameHeaderBytes + body_bytes + bulk_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const Bytes input = std::as_bytes(std::span(bytes, size));
  std::vector<std::byte> stream(input.begin() + 1, input.end());
  if ((bytes[0] & 1) != 0) {
    repair(stream);
  }
  Outcome whole;
  read(whole, stream, ~std::size_t{0});
  Outcome pieces;
  read(pieces, stream, 1 + static_cast<std::size_t>(bytes[0] >> 1) * 7);
  require(whole.count == pieces.count && whole.error == pieces.error && whole.frames.value() == pieces.frames.value());
  return 0;
}
