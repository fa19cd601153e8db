// Schemas from the wire and from snapshots: whatever the bytes are, they are refused or mean what they say.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "csrc/ps/partition.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace downpour;
  const Bytes input = std::as_bytes(std::span(bytes, size));
  try {
    const ps::Schema schema = ps::decode_schema(input);
    const std::vector<std::byte> encoded = schema.encode();
    if (!std::equal(encoded.begin(), encoded.end(), input.begin(), input.end()) ||
        ps::first_difference(schema, schema)) {
      std::abort();
    }
    std::int64_t elements = 0;
    for (const ps::ShardLayout& layout : ps::partition(schema, static_cast<int>(1 + size % 7))) {
      elements += layout.elements;
    }
    for (const ps::ParameterSpec& parameter : schema.parameters) {
      elements -= parameter.numel();
    }
    if (elements != 0) {
      std::abort();
    }
  } catch (const ProtocolError&) {
  }
  return 0;
}
