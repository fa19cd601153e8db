#pragma once

#include <cstdint>
#include <filesystem>

#include "csrc/base/file.h"
#include "csrc/ps/snapshot.h"

namespace downpour::ps {

// Counts the lives of a shard beside its snapshots, <folder>/shard-<index>-of-<count>.generation, as one decimal number: two
// restores from the same snapshot are two generations, so that (generation, version) never runs backwards.
// Returns the generation that begins now: above that of the life before, and at least `least`; 0 for the first life of all.
// Errors: Error naming the file when it cannot be written; unreadable contents count as none.
std::uint64_t begin_generation(Files& files, const std::filesystem::path& folder, SnapshotId id, std::uint64_t least);

}  // namespace downpour::ps
