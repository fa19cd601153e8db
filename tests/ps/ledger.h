#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/ps/shard.h"

namespace downpour::ps {

// Two parameters, 40 and 3 elements, in two groups.
inline Schema ledger_schema(RuleKind rule = RuleKind::kSgd, std::uint8_t momentum_buffers = 0) {
  return {{{"a", {40}, Dtype::kFloat32, 0}, {"b", {3}, Dtype::kFloat32, 1}}, 2, rule, momentum_buffers};
}

// One shard that holds the whole schema, and pushes to it. With lr = -1 a value is the sum of what was applied to it.
struct Ledger {
  explicit Ledger(std::optional<std::uint64_t> max_staleness = std::nullopt, Schema the_schema = ledger_schema())
      : schema(std::move(the_schema)), shard(schema, partition(schema, 1)[0], max_staleness) {
    shard.initialise(zeros(), std::vector<double>(schema.groups, 0.0));
  }

  std::vector<std::byte> zeros() const {
    return std::vector<std::byte>(static_cast<std::size_t>(shard.layout().buffer_bytes));
  }

  std::vector<std::byte> gradient(float value) const {
    std::vector<std::byte> bytes = zeros();
    for (const Slice& slice : shard.layout().slices) {
      auto* const begin = reinterpret_cast<float*>(bytes.data() + slice.offset_bytes);
      std::fill(begin, begin + slice.count, value);
    }
    return bytes;
  }

  PushHeader header(int worker, std::uint64_t sequence) const {
    PushHeader header;
    header.worker = worker;
    header.sequence = sequence;
    header.base = shard.version();
    header.groups.assign(schema.groups, Hyper{.lr = -1});
    header.present.assign(shard.layout().slices.size(), true);
    header.check.squared_norm = 4;
    return header;
  }

  PushResult push(const PushHeader& header, float value = 1) { return shard.push(header, gradient(value)); }
  PushResult push(int worker, float value = 1) { return push(header(worker, shard.next_sequence(worker)), value); }

  std::vector<float> values(std::size_t slice) const {
    const Slice& s = shard.layout().slices[slice];
    std::vector<float> values(static_cast<std::size_t>(s.count));
    std::memcpy(values.data(), shard.values().data() + s.offset_bytes, values.size() * sizeof(float));
    return values;
  }

  Schema schema;
  Shard shard;
};

inline Shard::State state_of(const Shard& shard) {
  Shard::State state;
  shard.copy_state(state);
  return state;
}

}  // namespace downpour::ps
