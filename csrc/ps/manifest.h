#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/ps/verdict.h"

namespace downpour::ps {

// What the manifest of one shard's snapshot says: which data file is the good one, and how to tell that it still is.
struct Manifest {
  int shard = 0;
  int shard_count = 1;
  Version version;
  std::vector<std::byte> schema;  // Schema::encode()
  std::string file;               // a plain name in the manifest's folder
  std::uint64_t file_bytes = 0;
  std::uint64_t block_bytes = 0;  // the data file's checksums are of blocks of this size, the last one shorter
  std::vector<std::uint64_t> checksums;
  std::vector<std::byte> counted = {};  // JobCounters, encoded; empty: nothing was
  bool operator==(const Manifest&) const = default;
};

// JSON with a checksum over itself.
std::vector<std::byte> encode_manifest(const Manifest& manifest);

// Errors: Error naming `what` when it is no JSON of that kind, its own checksum does not hold, or numbers contradict
// each other.
Manifest decode_manifest(Bytes text, std::string_view what);

// Errors: Error naming `what` and the byte range of the first difference when the bytes are not those that were
// written.
void check_file(const Manifest& manifest, Bytes file, std::string_view what);

}  // namespace downpour::ps
