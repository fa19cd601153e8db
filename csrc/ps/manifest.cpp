#include "csrc/ps/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "csrc/base/checksum.h"
#include "csrc/base/json_text.h"
#include "csrc/base/text.h"

namespace downpour::ps {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "downpour-shard-snapshot-1";
constexpr int kMaxDepth = 3;  // object, list of checksums; one to spare
constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string hex(Bytes bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    const auto value = static_cast<unsigned>(byte);
    text += kHexDigits[value >> 4];
    text += kHexDigits[value & 15];
  }
  return text;
}

unsigned digit(char c, std::string_view what) {
  const std::size_t value = kHexDigits.find(c);
  DOWNPOUR_CHECK(value != std::string_view::npos, what, ": expected a hexadecimal digit, found '", c, "'");
  return static_cast<unsigned>(value);
}

std::vector<std::byte> unhex(std::string_view text, std::string_view what) {
  DOWNPOUR_CHECK(text.size() % 2 == 0, what, ": expected an even number of hexadecimal digits, found ", text.size());
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(digit(text[2 * i], what) << 4 | digit(text[2 * i + 1], what));
  }
  return bytes;
}

std::uint64_t unhex_number(std::string_view text, std::string_view what) {
  DOWNPOUR_CHECK(text.size() == 16, what, ": expected 16 hexadecimal digits, found ", text.size());
  std::uint64_t value = 0;
  for (const char c : text) {
    value = value << 4 | digit(c, what);
  }
  return value;
}

// Typed reading of the fields of one JSON object. Errors: Error naming the field.
class Fields {
 public:
  Fields(const Json& json, std::string_view what) : json_(json), what_(what) {}

  std::uint64_t number(const char* key) const {
    const Json& value = field(key);
    DOWNPOUR_CHECK(value.is_number_unsigned(), what_, ": field '", key, "' is no number >= 0");
    return value.get<std::uint64_t>();
  }
  std::string text(const char* key) const {
    const Json& value = field(key);
    DOWNPOUR_CHECK(value.is_string(), what_, ": field '", key, "' is no text");
    return value.get<std::string>();
  }
  std::vector<std::uint64_t> checksums(const char* key) const {
    const Json& list = field(key);
    DOWNPOUR_CHECK(list.is_array(), what_, ": field '", key, "' is no list");
    std::vector<std::uint64_t> values;
    for (const Json& value : list) {
      DOWNPOUR_CHECK(value.is_string(), what_, ": field '", key, "' is no list of texts");
      values.push_back(unhex_number(value.get_ref<const std::string&>(), what_));
    }
    return values;
  }

 private:
  const Json& field(const char* key) const {
    const auto found = json_.find(key);
    DOWNPOUR_CHECK(found != json_.end(), what_, ": field '", key, "' is missing");
    return *found;
  }

  const Json& json_;
  std::string_view what_;
};

// Over the other fields, written the one way that Json::dump() has.
std::string self_checksum(const Json& json) {
  Json others = json;
  others.erase("checksum");
  return hexadecimal(checksum(as_bytes(others.dump())));
}

Json parse(Bytes bytes, std::string_view what) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_json_depth(text, kMaxDepth, what);
  Json json = Json::parse(text, nullptr, false);
  DOWNPOUR_CHECK(json.is_object(), what, ": bytes 0 to ", text.size(), " are no JSON object");
  const Fields fields(json, what);
  DOWNPOUR_CHECK(fields.text("format") == kFormat, what, ": expected format '", kFormat, "', found '",
                 fields.text("format"), "'; another version of Downpour wrote it");
  DOWNPOUR_CHECK(fields.text("checksum") == self_checksum(json), what, ": bytes 0 to ", text.size(),
                 ": expected checksum ", fields.text("checksum"), ", found ", self_checksum(json));
  return json;
}

std::uint64_t block_count(std::uint64_t file_bytes, std::uint64_t block_bytes) {
  return file_bytes / block_bytes + (file_bytes % block_bytes != 0 ? 1 : 0);
}

int small_number(std::uint64_t value, std::string_view what) {
  DOWNPOUR_CHECK(value <= 1'000'000, what, ": a shard number of ", value);
  return static_cast<int>(value);
}

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& manifest) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["shard"] = manifest.shard;
  json["shard_count"] = manifest.shard_count;
  json["generation"] = manifest.version.generation;
  json["version"] = manifest.version.version;
  json["schema"] = hex(manifest.schema);
  json["file"] = manifest.file;
  json["file_bytes"] = manifest.file_bytes;
  json["block_bytes"] = manifest.block_bytes;
  json["checksums"] = Json::array();
  for (const std::uint64_t value : manifest.checksums) {
    json["checksums"].push_back(hexadecimal(value));  // as text: other languages have no 64-bit integers
  }
  if (!manifest.counted.empty()) {
    json["counted"] = hex(manifest.counted);
  }
  json["checksum"] = self_checksum(json);
  const std::string text = json.dump(1) + "\n";
  return {as_bytes(text).begin(), as_bytes(text).end()};
}

Manifest decode_manifest(Bytes text, std::string_view what) {
  const Json json = parse(text, what);
  const Fields fields(json, what);
  Manifest manifest;
  manifest.shard = small_number(fields.number("shard"), what);
  manifest.shard_count = small_number(fields.number("shard_count"), what);
  manifest.version = {fields.number("generation"), fields.number("version")};
  manifest.schema = unhex(fields.text("schema"), what);
  manifest.file = fields.text("file");
  manifest.file_bytes = fields.number("file_bytes");
  manifest.block_bytes = fields.number("block_bytes");
  manifest.checksums = fields.checksums("checksums");
  if (json.contains("counted")) {
    manifest.counted = unhex(fields.text("counted"), what);
  }
  DOWNPOUR_CHECK(!manifest.file.empty() && manifest.file[0] != '.' && manifest.file.find('/') == std::string::npos,
                 what, ": '", manifest.file, "' is no plain file name");
  DOWNPOUR_CHECK(
      manifest.block_bytes > 0 && manifest.checksums.size() == block_count(manifest.file_bytes, manifest.block_bytes),
      what, ": ", manifest.checksums.size(), " checksums of blocks of ", manifest.block_bytes, " bytes do not cover ",
      manifest.file_bytes, " bytes");
  return manifest;
}

void check_file(const Manifest& manifest, Bytes file, std::string_view what) {
  DOWNPOUR_CHECK(file.size() >= manifest.file_bytes, what, ": truncated: expected ", manifest.file_bytes,
                 " bytes, found ", file.size(), "; bytes ", file.size(), " to ", manifest.file_bytes, " are missing");
  DOWNPOUR_CHECK(file.size() == manifest.file_bytes, what, ": expected ", manifest.file_bytes, " bytes, found ",
                 file.size());
  for (std::size_t i = 0; i < manifest.checksums.size(); ++i) {
    const std::size_t begin = i * manifest.block_bytes;
    const Bytes block = file.subspan(begin, std::min<std::size_t>(manifest.block_bytes, file.size() - begin));
    const std::uint64_t found = checksum(block);
    DOWNPOUR_CHECK(found == manifest.checksums[i], what, ": corrupted: bytes ", begin, " to ", begin + block.size(),
                   ": expected checksum ", hexadecimal(manifest.checksums[i]), ", found ", hexadecimal(found));
  }
}

}  // namespace downpour::ps
