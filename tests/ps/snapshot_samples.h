#pragma once

#include <vector>

#include "csrc/base/checksum.h"
#include "csrc/base/random.h"
#include "csrc/ps/manifest.h"
#include "csrc/ps/snapshot.h"
#include "tests/ps/fault_files.h"

// Shards to save, for the tests and the fuzz target of snapshots.
namespace downpour::ps {

inline Schema sample_schema(RuleKind rule = RuleKind::kAdam) {
  return {{{"conv1.weight", {3, 7}, Dtype::kFloat32, 0},
           {"scale \"x\"", {}, Dtype::kFloat64, 1},
           {"empty", {0}, Dtype::kFloat32, 0}},
          2,
          rule,
          1};
}

// A state that `seed` decides: random values in every slice, pushes of a few workers, leases with holes.
inline Shard::State sample_state(const Schema& schema, const ShardLayout& layout, std::uint64_t seed) {
  Random random(seed);
  Shard::State state = Shard::zero_state(schema, layout);
  state.initialised = true;
  state.version = {seed, 10 * seed};
  const auto fill = [&](AlignedBytes& buffer) {
    for (const Slice& slice : layout.slices) {
      for (std::int64_t i = 0; i < slice.size_bytes(); ++i) {
        buffer[static_cast<std::size_t>(slice.offset_bytes + i)] = static_cast<std::byte>(random.below(256));
      }
    }
  };
  fill(state.values);
  for (AlignedBytes& buffer : state.optimizer_state) {
    fill(buffer);
  }
  for (std::int64_t& step : state.steps) {
    step = static_cast<std::int64_t>(random.below(1000));
  }
  for (std::uint64_t s = 0; s < 5 + seed; ++s) {
    state.verdicts.record(static_cast<int>(s % 3), s / 3, static_cast<Verdict>(1 + random.below(4)));
    state.leases.record(random.below(20));
  }
  return state;
}

inline const std::filesystem::path kSampleFolder = "/snapshots";

// The checksums of a whole file, as in Manifest.
inline std::vector<std::uint64_t> block_checksums(Bytes file, std::uint64_t block_bytes) {
  std::vector<std::uint64_t> checksums;
  while (!file.empty()) {
    const Bytes block = file.first(std::min<std::size_t>(block_bytes, file.size()));
    checksums.push_back(checksum(block));
    file = file.subspan(block.size());
  }
  return checksums;
}

// Makes the manifest fit whatever the data file now is, so that a test reaches the checks behind the checksums.
inline void reseal(MemoryFiles& files, SnapshotId id) {
  const std::filesystem::path where = kSampleFolder / concat("shard-", id.shard, "-of-", id.shard_count, ".json");
  Manifest manifest = decode_manifest(files.bytes(where), "sample");
  const std::vector<std::byte>& data = files.bytes(kSampleFolder / manifest.file);
  manifest.file_bytes = data.size();
  manifest.checksums = block_checksums(data, manifest.block_bytes);
  files.put(where, encode_manifest(manifest));
}

}  // namespace downpour::ps
