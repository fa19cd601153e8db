#include "csrc/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace downpour {

std::uint64_t checksum(Bytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Checksum::Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_)); }

Checksum::~Checksum() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Checksum::add(Bytes bytes) { XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size()); }

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_)); }

}  // namespace downpour
