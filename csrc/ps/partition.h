#pragma once

#include <cstdint>
#include <vector>

#include "csrc/ps/schema.h"

// Who owns which elements: the parameters, flattened in schema order, cut into contiguous shards.
// Pure: every process computes the same partition from the same schema.
namespace downpour::ps {

// Part of one parameter inside one shard.
struct Slice {
  std::uint32_t parameter = 0;  // index into Schema::parameters
  std::int64_t begin = 0;       // first element, in the parameter's flattened order
  std::int64_t count = 0;       // elements; > 0
  Dtype dtype = Dtype::kFloat32;
  std::uint32_t group = 0;
  std::int64_t offset_bytes = 0;  // where the slice lies in the shard's buffer; a multiple of 64
  std::int64_t size_bytes() const { return count * downpour::size_bytes(dtype); }
};

// One shard: slices in order, each starting at the next multiple of 64 bytes.
struct ShardLayout {
  std::vector<Slice> slices;      // empty where there are more shards than elements
  std::int64_t buffer_bytes = 0;  // of a values buffer, a gradient buffer, one optimizer-state buffer; multiple of 64
  std::int64_t elements = 0;
  std::uint64_t value_bytes() const;  // of all slices, without what lies between them
};

// Shapes: shard_count >= 1. Every element of every parameter is in exactly one slice of one shard; cuts inside a parameter
// fall on multiples of 16 elements; the largest shard holds at most 5 % + 16 elements more bytes than the smallest, and no
// shard is empty while there are at least 16 elements per shard.
std::vector<ShardLayout> partition(const Schema& schema, int shard_count);

// Which server owns shard i of `shard_count`: shards are dealt in contiguous runs, as even as possible.
int server_of_shard(int shard, int shard_count, int server_count);

}  // namespace downpour::ps
