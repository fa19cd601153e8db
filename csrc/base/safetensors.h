#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"

// The header of a safetensors file: u64 length, that many bytes of JSON, then the tensors' bytes one after another. It
// holds no code, and every number in it is checked against the file before it is used.
// Source: github.com/huggingface/safetensors, "Format".
namespace downpour {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32", "F64", "I64", "U8", ... : safetensors' names
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
  std::uint64_t size_bytes() const { return end - begin; }
  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  // ascending, without holes
  std::uint64_t data_begin = 0;      // where in the file the tensors' bytes begin; a multiple of 64 in files of ours
};

// Bytes of one element; 0 for a dtype that is not known.
std::uint64_t safetensors_element_bytes(std::string_view dtype);

// The bytes before the first tensor's. Fills in begin and end of the tensors, which are laid out in the given order,
// and data_begin. Errors: Error for names or metadata that are not UTF-8, an unknown dtype, a negative or overflowing
// shape.
std::vector<std::byte> encode_safetensors_header(SafetensorsHeader& header);

// Shapes: `file` is the whole file. Errors: Error naming `what` and the bytes when the header is longer than the file
// or `limit_bytes`, is no such JSON, has an unknown dtype, more than 8 dimensions, a shape that does not fit the
// tensor's bytes, overlaps, holes, or bytes that no tensor has.
SafetensorsHeader decode_safetensors_header(Bytes file, std::uint64_t limit_bytes, std::string_view what);

}  // namespace downpour
