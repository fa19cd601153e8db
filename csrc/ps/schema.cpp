#include "csrc/ps/schema.h"

#include <limits>
#include <unordered_set>

#include "csrc/base/checksum.h"

namespace downpour::ps {
namespace {

constexpr std::uint8_t kSchemaFormat = 1;
constexpr std::size_t kMaxDimensions = 8;
constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxParameters = 65536;
constexpr std::uint32_t kMaxGroups = 65536;
// Name length, dtype, group and number of dimensions: less than this no encoded parameter takes.
constexpr std::size_t kMinParameterBytes = 4 + 1 + 4 + 1;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

std::string describe(const ParameterSpec& parameter) {
  const std::string group = parameter.group == 0 ? "" : concat(" in group ", parameter.group);
  return concat("'", parameter.name, "' ", name(parameter.dtype), " ", shape_text(parameter.shape), group);
}

void encode_parameter(const ParameterSpec& parameter, Writer& out) {
  out.put_string(parameter.name)
      .put(parameter.dtype)
      .put(parameter.group)
      .put(static_cast<std::uint8_t>(parameter.shape.size()));
  for (const std::int64_t size : parameter.shape) {
    out.put(size);
  }
}

// How many bytes a UTF-8 character has that starts so; 0 for a byte that starts none, or a control character.
std::size_t character_bytes(unsigned char first) {
  if (first < 0x80) {
    return first >= 0x20 && first != 0x7F ? 1 : 0;
  }
  return first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

// Names end up in log lines and in JSON, so they are printable and valid UTF-8 (not overlong, no surrogates).
bool printable(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_bytes(byte(i));
    if (length == 0 || length > text.size() - i) {
      return false;
    }
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) {
        return false;
      }
    }
    const unsigned char first = byte(i), second = length > 1 ? byte(i + 1) : 0;
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string decode_name(Reader& in) {
  const Bytes bytes = in.get_bytes();
  DOWNPOUR_CHECK_AS(ProtocolError, !bytes.empty() && bytes.size() <= kMaxNameBytes, "schema: a parameter name of ",
                    bytes.size(), " bytes; a name has 1 to ", kMaxNameBytes);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  DOWNPOUR_CHECK_AS(ProtocolError, printable(text), "schema: a parameter name is not printable UTF-8 text");
  return text;
}

std::vector<std::int64_t> decode_shape(Reader& in) {
  const std::size_t dimensions = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, dimensions <= kMaxDimensions, "schema: a parameter of ", dimensions,
                    " dimensions; the limit is ", kMaxDimensions);
  std::vector<std::int64_t> shape(dimensions);
  for (std::int64_t& size : shape) {
    size = in.get<std::int64_t>();
    DOWNPOUR_CHECK_AS(ProtocolError, size >= 0, "schema: a dimension of ", size, " elements");
  }
  return shape;
}

// nullopt when the product overflows. A zero makes it zero whatever the others are.
std::optional<std::int64_t> product(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size == 0) {
      return 0;
    }
  }
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(elements, size, &elements)) {
      return std::nullopt;
    }
  }
  return elements;
}

ParameterSpec decode_parameter(Reader& in, std::uint32_t groups) {
  ParameterSpec parameter;
  parameter.name = decode_name(in);
  parameter.dtype = to_dtype(in.get<std::uint8_t>());
  parameter.group = in.get<std::uint32_t>();
  parameter.shape = decode_shape(in);
  DOWNPOUR_CHECK_AS(ProtocolError, parameter.group < groups, "schema: parameter '", parameter.name, "' is in group ",
                    parameter.group, " of ", groups);
  DOWNPOUR_CHECK_AS(ProtocolError, product(parameter.shape).has_value(), "schema: parameter '", parameter.name, "' ",
                    shape_text(parameter.shape), " has more than 2^63 - 1 elements");
  return parameter;
}

void decode_settings(Reader& in, Schema& schema) {
  const int format = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, format == kSchemaFormat, "schema: expected format ", int{kSchemaFormat}, ", found ",
                    format, "; both sides must run the same version of Downpour");
  const int rule = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, rule >= 1 && rule <= 4, "schema: update rule ", rule,
                    " is none of SGD (1) to AdamW (4)");
  schema.rule = static_cast<RuleKind>(rule);
  schema.momentum_buffers = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, schema.momentum_buffers <= 1, "schema: ", int{schema.momentum_buffers},
                    " momentum buffers; 0 or 1 are possible");
  schema.groups = in.get<std::uint32_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, schema.groups >= 1 && schema.groups <= kMaxGroups, "schema: ", schema.groups,
                    " parameter groups; 1 to ", kMaxGroups, " are possible");
}

}  // namespace

std::string_view name(RuleKind kind) {
  switch (kind) {
    case RuleKind::kSgd: return "SGD";
    case RuleKind::kAdagrad: return "Adagrad";
    case RuleKind::kAdam: return "Adam";
    case RuleKind::kAdamW: return "AdamW";
  }
  return "no update rule";
}

std::int64_t ParameterSpec::numel() const {
  const auto elements = product(shape);
  DOWNPOUR_CHECK(elements.has_value(), "parameter '", name, "' ", shape_text(shape),
                 " has more than 2^63 - 1 elements");
  return *elements;
}

std::vector<std::byte> Schema::encode() const {
  Writer out;
  out.put(kSchemaFormat).put(rule).put(momentum_buffers).put(groups);
  out.put(static_cast<std::uint32_t>(parameters.size()));
  for (const ParameterSpec& parameter : parameters) {
    encode_parameter(parameter, out);
  }
  return out.take();
}

std::uint64_t Schema::hash() const { return checksum(encode()); }

Schema decode_schema(Bytes bytes) {
  Reader in(bytes, "schema");
  Schema schema;
  decode_settings(in, schema);
  const std::size_t count = in.get_count(kMinParameterBytes);
  DOWNPOUR_CHECK_AS(ProtocolError, count <= kMaxParameters, "schema: ", count, " parameters; the limit is ",
                    kMaxParameters);
  schema.parameters.reserve(count);
  std::unordered_set<std::string_view> names;
  std::int64_t total_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const ParameterSpec& parameter = schema.parameters.emplace_back(decode_parameter(in, schema.groups));
    DOWNPOUR_CHECK_AS(ProtocolError, names.insert(parameter.name).second, "schema: parameter '", parameter.name,
                      "' comes twice");
    std::int64_t parameter_bytes = 0;
    DOWNPOUR_CHECK_AS(ProtocolError,
                      !__builtin_mul_overflow(parameter.numel(), size_bytes(parameter.dtype), &parameter_bytes) &&
                          !__builtin_add_overflow(total_bytes, parameter_bytes, &total_bytes),
                      "schema: the parameters have more than 2^63 - 1 bytes");
  }
  in.finish();
  return schema;
}

std::optional<std::string> first_difference(const Schema& here, const Schema& there) {
  if (here.rule != there.rule) {
    return concat("update rule: ", name(here.rule), " here, ", name(there.rule), " there");
  }
  if (here.momentum_buffers != there.momentum_buffers) {
    return concat("momentum or amsgrad buffers: ", int{here.momentum_buffers}, " here, ", int{there.momentum_buffers},
                  " there");
  }
  if (here.groups != there.groups) {
    return concat("parameter groups: ", here.groups, " here, ", there.groups, " there");
  }
  const std::size_t shared = std::min(here.parameters.size(), there.parameters.size());
  for (std::size_t i = 0; i < shared; ++i) {
    if (here.parameters[i] != there.parameters[i]) {
      return concat("parameter ", i, ": ", describe(here.parameters[i]), " here, ", describe(there.parameters[i]),
                    " there");
    }
  }
  if (here.parameters.size() != there.parameters.size()) {
    const bool more_here = here.parameters.size() > shared;
    return concat("parameter ", shared, ": ", more_here ? describe((here.parameters)[shared]) : std::string("none"),
                  " here, ", more_here ? std::string("none") : describe(there.parameters[shared]), " there (",
                  here.parameters.size(), " parameters here, ", there.parameters.size(), " there)");
  }
  return std::nullopt;
}

}  // namespace downpour::ps
