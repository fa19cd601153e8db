#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/base/dtype.h"

// What all processes of a job must agree on before a single element moves: the parameters in order and the update rule.
namespace downpour::ps {

// Values are on the wire and in snapshots.
enum class RuleKind : std::uint8_t { kSgd = 1, kAdagrad = 2, kAdam = 3, kAdamW = 4 };
std::string_view name(RuleKind kind);

struct ParameterSpec {
  std::string name;                 // unique, e.g. "conv1.weight"
  std::vector<std::int64_t> shape;  // at most 8 dimensions; zero elements are legal
  Dtype dtype = Dtype::kFloat32;
  std::uint32_t group = 0;  // index of its parameter group: learning rate and weight decay travel per group

  std::int64_t numel() const;  // Errors: Error when the product overflows int64
  bool operator==(const ParameterSpec&) const = default;
};

// A value: copied and compared.
struct Schema {
  std::vector<ParameterSpec> parameters;
  std::uint32_t groups = 1;
  RuleKind rule = RuleKind::kAdagrad;
  std::uint8_t momentum_buffers = 0;  // SGD: 1 when any group has momentum; Adam: 1 when any group has amsgrad
  bool operator==(const Schema&) const = default;

  std::uint64_t hash() const;  // of encode(): goes into every handshake
  std::vector<std::byte> encode() const;
};

// Errors: ProtocolError for bytes that are no schema (counts, sizes, dtypes, dimensions are checked before allocation).
Schema decode_schema(Bytes bytes);

// nullopt when equal, else one sentence naming the first difference, e.g.
// "parameter 3: 'fc1.weight' float32 [128, 9216] here, 'fc1.weight' float32 [64, 9216] there".
std::optional<std::string> first_difference(const Schema& here, const Schema& there);

}  // namespace downpour::ps
