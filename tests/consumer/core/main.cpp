// Uses the core as an installed library: a header that the layers share and a function that must be linked.
#include "csrc/base/checksum.h"

#include <cstddef>
#include <iostream>
#include <vector>

int main() {
  const std::vector<std::byte> bytes(1000, std::byte{7});
  downpour::Checksum parts;
  parts.add(downpour::Bytes(bytes).first(400));
  parts.add(downpour::Bytes(bytes).subspan(400));
  if (parts.value() != downpour::checksum(bytes)) {
    std::cerr << "the checksum of the parts differs from that of the whole\n";
    return 1;
  }
  return 0;
}
