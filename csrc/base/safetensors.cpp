#include "csrc/base/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "csrc/base/json_text.h"

namespace downpour {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignmentBytes = 64;
constexpr std::size_t kMaxDimensions = 8;
constexpr int kMaxDepth = 4;  // object of tensors, tensor, shape; one to spare
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 13> kElementBytes{{{"BOOL", 1},
                                                                                    {"U8", 1},
                                                                                    {"I8", 1},
                                                                                    {"U16", 2},
                                                                                    {"I16", 2},
                                                                                    {"F16", 2},
                                                                                    {"BF16", 2},
                                                                                    {"U32", 4},
                                                                                    {"I32", 4},
                                                                                    {"F32", 4},
                                                                                    {"U64", 8},
                                                                                    {"I64", 8},
                                                                                    {"F64", 8}}};

// Errors: Error naming the tensor when it has an unknown dtype or more than 2^63 - 1 bytes.
std::uint64_t implied_bytes(const TensorEntry& tensor, std::string_view what) {
  const std::uint64_t element_bytes = safetensors_element_bytes(tensor.dtype);
  DOWNPOUR_CHECK(element_bytes > 0, what, ": tensor '", tensor.name, "' has the unknown dtype '", tensor.dtype, "'");
  auto bytes = static_cast<std::int64_t>(element_bytes);
  for (const std::int64_t size : tensor.shape) {
    DOWNPOUR_CHECK(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), what, ": tensor '", tensor.name,
                   "' has an impossible dimension of ", size);
  }
  return static_cast<std::uint64_t>(bytes);
}

Json to_json(const SafetensorsHeader& header) {
  Json json = Json::object();
  json[kMetadata] = header.metadata;
  for (const TensorEntry& tensor : header.tensors) {
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  return json;
}

std::string dump(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::exception& error) {
    throw Error(concat("safetensors header: a name or metadata is not UTF-8 text: ", error.what()));
  }
}

void lay_out(std::vector<TensorEntry>& tensors) {
  std::uint64_t end = 0;
  for (TensorEntry& tensor : tensors) {
    tensor.begin = end;
    DOWNPOUR_CHECK(!__builtin_add_overflow(end, implied_bytes(tensor, "safetensors header"), &end),
                   "safetensors header: the tensors have more than 2^64 bytes");
    tensor.end = end;
  }
}

// A field that must be there. Errors: Error naming it.
const Json& field(const Json& json, const char* key, std::string_view tensor, std::string_view what) {
  const auto found = json.find(key);
  DOWNPOUR_CHECK(found != json.end(), what, ": tensor '", tensor, "' has no field '", key, "'");
  return *found;
}

std::vector<std::uint64_t> numbers(const Json& json, std::size_t most, std::string_view tensor, std::string_view what) {
  DOWNPOUR_CHECK(json.is_array() && json.size() <= most, what, ": tensor '", tensor, "': expected a list of at most ",
                 most, " numbers");
  std::vector<std::uint64_t> values;
  for (const Json& number : json) {
    DOWNPOUR_CHECK(number.is_number_unsigned(), what, ": tensor '", tensor, "': expected numbers >= 0");
    values.push_back(number.get<std::uint64_t>());
  }
  return values;
}

TensorEntry tensor_of(const std::string& name, const Json& json, std::string_view what) {
  DOWNPOUR_CHECK(json.is_object(), what, ": tensor '", name, "' is no JSON object");
  TensorEntry tensor;
  tensor.name = name;
  const Json& dtype = field(json, "dtype", name, what);
  DOWNPOUR_CHECK(dtype.is_string(), what, ": tensor '", name, "': the dtype is no text");
  tensor.dtype = dtype.get<std::string>();
  for (const std::uint64_t size : numbers(field(json, "shape", name, what), kMaxDimensions, name, what)) {
    tensor.shape.push_back(static_cast<std::int64_t>(size));  // above 2^63: negative, refused below
  }
  const auto offsets = numbers(field(json, "data_offsets", name, what), 2, name, what);
  DOWNPOUR_CHECK(offsets.size() == 2 && offsets[0] <= offsets[1], what, ": tensor '", name,
                 "': expected two ascending offsets");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  const std::uint64_t expected = implied_bytes(tensor, what);
  DOWNPOUR_CHECK(tensor.size_bytes() == expected, what, ": tensor '", name, "': its shape needs ", expected,
                 " bytes, its offsets have ", tensor.size_bytes());
  return tensor;
}

void read_metadata(const Json& json, std::map<std::string, std::string>& metadata, std::string_view what) {
  DOWNPOUR_CHECK(json.is_object(), what, ": ", kMetadata, " is no JSON object");
  for (const auto& [key, value] : json.items()) {
    DOWNPOUR_CHECK(value.is_string(), what, ": ", kMetadata, " '", key, "' is no text");
    metadata[key] = value.get<std::string>();
  }
}

void check_coverage(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes, std::string_view what) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    DOWNPOUR_CHECK(tensor.begin == end, what, ": tensor '", tensor.name, "' begins at data byte ", tensor.begin,
                   ", expected ", end, ": tensors overlap or leave a hole");
    end = tensor.end;
  }
  DOWNPOUR_CHECK(end == data_bytes, what, ": the tensors end at data byte ", end, ", the file has ", data_bytes);
}

// Errors: Error when the length does not fit the file or the limit.
std::string_view header_text(Bytes file, std::uint64_t limit_bytes, std::string_view what) {
  DOWNPOUR_CHECK(file.size() >= kLengthBytes, what, ": expected at least ", kLengthBytes, " bytes, found ",
                 file.size());
  const auto length = Reader(file.first(kLengthBytes), what).get<std::uint64_t>();
  DOWNPOUR_CHECK(length <= limit_bytes, what, ": bytes 0 to 7: a header of ", length, " bytes, the limit is ",
                 limit_bytes);
  DOWNPOUR_CHECK(length <= file.size() - kLengthBytes, what, ": bytes 0 to 7: a header of ", length,
                 " bytes, the file has ", file.size() - kLengthBytes, " more");
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length)};
}

Json parse(std::string_view text, std::string_view what) {
  check_json_depth(text, kMaxDepth, what);
  Json json = Json::parse(text, nullptr, false);
  DOWNPOUR_CHECK(json.is_object(), what, ": bytes ", kLengthBytes, " to ", kLengthBytes + text.size(),
                 " are no JSON object");
  return json;
}

}  // namespace

std::uint64_t safetensors_element_bytes(std::string_view dtype) {
  for (const auto& [known, bytes] : kElementBytes) {
    if (known == dtype) {
      return bytes;
    }
  }
  return 0;
}

std::vector<std::byte> encode_safetensors_header(SafetensorsHeader& header) {
  lay_out(header.tensors);
  std::string text = dump(to_json(header));
  const std::size_t unpadded = kLengthBytes + text.size();
  text.append((kAlignmentBytes - unpadded % kAlignmentBytes) % kAlignmentBytes, ' ');
  header.data_begin = kLengthBytes + text.size();
  Writer out;
  out.put(static_cast<std::uint64_t>(text.size()));
  std::vector<std::byte> bytes = out.take();
  bytes.insert(bytes.end(), as_bytes(text).begin(), as_bytes(text).end());
  return bytes;
}

SafetensorsHeader decode_safetensors_header(Bytes file, std::uint64_t limit_bytes, std::string_view what) {
  const std::string_view text = header_text(file, limit_bytes, what);
  const Json json = parse(text, what);
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text.size();
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      read_metadata(value, header.metadata, what);
    } else {
      header.tensors.push_back(tensor_of(name, value, what));
    }
  }
  check_coverage(header.tensors, file.size() - header.data_begin, what);
  return header;
}

}  // namespace downpour
