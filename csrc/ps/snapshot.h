#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "csrc/base/file.h"
#include "csrc/ps/shard.h"

// A shard's state on disk: one safetensors file (values, optimizer state, step counts by parameter name and slice;
// verdict and lease tables as uint8 tensors) and one small JSON manifest with sizes and checksums, written last and by
// rename. The manifest names the data file that counts.
//   <folder>/shard-<index>-of-<count>.json
//   <folder>/shard-<index>-of-<count>.<generation>.<version>.safetensors  (.1, .2 before the suffix when that is taken)
namespace downpour::ps {

struct SnapshotId {
  int shard = 0;
  int shard_count = 1;
};

// `counted`: Manifest's. Writes to a temporary name, syncs the file, renames, syncs the folder, then the manifest the same
// way, then deletes every other data file of this shard. A crash at any point leaves the previous or the new snapshot whole.
// Errors: Error naming the file, the operation and the system's reason (disk full, read-only); the previous one stays
// good and the temporary file is removed. Blocks: on the disk.
void write_snapshot(Files& files, const std::filesystem::path& folder, SnapshotId id, const Schema& schema,
                    const ShardLayout& layout, const Shard::State& state, Bytes counted = {});

// nullopt when there is no manifest. Errors: Error for a truncated, corrupted or foreign snapshot: says which file,
// which byte range, expected against found, and what to do; and where there is none, but one of a job with another number of
// shards. Nothing is allocated from an unchecked length.
std::optional<Shard::State> read_snapshot(Files& files, const std::filesystem::path& folder, SnapshotId id,
                                          const Schema& schema, const ShardLayout& layout);

// What the shard had counted when its snapshot was taken, so that a restart neither forgets nor counts twice; zeros when there is
// none, or one of another job.
ShardCounters read_snapshot_counters(Files& files, const std::filesystem::path& folder, SnapshotId id,
                                     std::uint64_t job);

}  // namespace downpour::ps
