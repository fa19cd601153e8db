// Bodies and frames of the handshake: whatever the bytes are, they are refused or mean what they say. The first byte chooses
// which decoder gets the rest.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "csrc/transport/handshake.h"

namespace {

using namespace downpour;
using namespace downpour::transport;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

void require_same(const std::vector<std::byte>& encoded, Bytes input) { require(std::ranges::equal(encoded, input)); }

void read_hello(Bytes input) {
  const Hello hello = decode_hello(input);
  require(std::ranges::all_of(hello.build, [](char character) { return character >= ' ' && character <= '~'; }));
  if (hello.protocol == kProtocolVersion) {
    require_same(encode(hello), input);
  }
}

void read_refusal(Bytes input) {
  const Refusal refusal = decode_refusal(input);
  require(std::ranges::all_of(refusal.reason, [](char character) { return character >= ' ' && character <= '~'; }));
}

void read_frame(Bytes input) {
  const HandshakeFrame frame = decode_handshake_frame(input);
  require(frame.body.size() <= kHandshakeLimits.body_bytes);
  switch (static_cast<FrameType>(frame.header.type)) {
    case FrameType::kHello: return read_hello(frame.body);
    case FrameType::kRefused: return read_refusal(frame.body);
    default: require_same(handshake_frame(static_cast<FrameType>(frame.header.type), frame.body), input);
  }
}

void read(std::uint8_t which, Bytes input) {
  switch (which % 6) {
    case 0: return read_hello(input);
    case 1: return require_same(encode(decode_offer(input)), input);
    case 2: return require_same(encode(decode_claim(input)), input);
    case 3: return require_same(encode(decode_welcome(input)), input);
    case 4: return read_refusal(input);
    default: return read_frame(input);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0 || size > kLargestHandshakeBytes) {  // more is never read
    return 0;
  }
  try {
    read(bytes[0], std::as_bytes(std::span(bytes, size)).subspan(1));
  } catch (const ProtocolError&) {
  }
  return 0;
}
