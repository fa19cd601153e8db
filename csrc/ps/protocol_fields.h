#pragma once

#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/ps/protocol.h"

// How messages become bytes: each names its fields once (a specialisation of Fields), and both directions follow the list.
// For protocol*.cpp only.
namespace downpour::ps {

// static auto of(auto& message): a tie of its fields, in wire order; kName for messages.
template <typename T>
struct Fields;

template <typename T>
concept Composed = requires(T& value) {
  Fields<T>::of(value);
};

struct AnyField {
  template <typename T>
  operator T&() const;
};

// How many fields a message has: as many as it can be initialised with.
template <typename T, typename... Given>
constexpr std::size_t count_of_fields() {
  if constexpr (requires { T{Given{}..., AnyField{}}; }) {
    return count_of_fields<T, Given..., AnyField>();
  } else {
    return sizeof...(Given);
  }
}

// A field that Fields<T> forgets would silently stay at its default at the other end.
template <typename T>
constexpr std::size_t kNamedFields = std::tuple_size_v<decltype(Fields<T>::of(std::declval<T&>()))>;
template <typename T>
constexpr std::size_t kLeftOut = 0;  // on purpose

// ---- writing -------------------------------------------------------------------------------------------------------

template <typename T>
void put_field(Writer& out, const T& value);

inline void put_bits(Writer& out, const std::vector<bool>& bits) {
  out.put(static_cast<std::uint32_t>(bits.size()));
  for (std::size_t at = 0; at < bits.size(); at += 8) {
    std::uint8_t byte = 0;
    for (std::size_t bit = 0; bit < 8 && at + bit < bits.size(); ++bit) {
      byte = static_cast<std::uint8_t>(byte | (bits[at + bit] ? 1u << bit : 0u));
    }
    out.put(byte);
  }
}

template <typename T>
void put_items(Writer& out, const std::vector<T>& items) {
  out.put(static_cast<std::uint32_t>(items.size()));
  for (const T& item : items) {
    put_field(out, item);
  }
}

inline void put_value(Writer& out, bool value) { out.put(static_cast<std::uint8_t>(value)); }
inline void put_value(Writer& out, const std::string& text) { out.put_string(text); }
inline void put_value(Writer& out, Verdict verdict) { out.put(static_cast<std::uint8_t>(verdict)); }
inline void put_value(Writer& out, const LeaseTable& table) { table.encode(out); }
inline void put_value(Writer& out, const Schema& schema) { out.put_bytes(schema.encode()); }
inline void put_value(Writer& out, const std::optional<Verdict>& verdict) {
  out.put(verdict ? static_cast<std::uint8_t>(*verdict) : std::uint8_t{0});
}
inline void put_value(Writer& out, const std::vector<bool>& bits) { put_bits(out, bits); }
template <typename T>
void put_value(Writer& out, const std::vector<T>& items) {
  put_items(out, items);
}
template <typename T, std::size_t kSize>
void put_value(Writer& out, const std::array<T, kSize>& items) {
  for (const T& item : items) {
    put_field(out, item);
  }
}

template <typename T>
void put_field(Writer& out, const T& value) {
  if constexpr (Composed<T>) {
    static_assert(kNamedFields<T> + kLeftOut<T> == count_of_fields<T>(), "a field of the message is not sent");
    std::apply([&](const auto&... field) { (put_field(out, field), ...); }, Fields<T>::of(value));
  } else if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>) {
    out.put(value);
  } else {
    put_value(out, value);
  }
}

// ---- reading -------------------------------------------------------------------------------------------------------

template <typename T>
void get_field(Reader& in, T& value);

// The fewest bytes that one item takes, so that a count is refused before memory is taken for it.
template <typename T>
constexpr std::size_t least_bytes() {
  if constexpr (std::same_as<T, std::string>) {
    return sizeof(std::uint32_t);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return sizeof(T);
  } else {
    return Fields<T>::kLeastBytes;
  }
}

inline std::uint8_t get_flag(Reader& in) {
  const auto value = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, value <= 1, "a flag is 0 or 1, found ", int{value});
  return value;
}

inline std::optional<Verdict> get_verdict(Reader& in) {
  const auto value = in.get<std::uint8_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, value <= static_cast<std::uint8_t>(Verdict::kDuplicate),
                    "a verdict is 1 to 4, found ", int{value});
  return value == 0 ? std::nullopt : std::optional(static_cast<Verdict>(value));
}

inline void get_bits(Reader& in, std::vector<bool>& bits) {
  const auto count = in.get<std::uint32_t>();
  const Bytes packed = in.take((std::size_t{count} + 7) / 8);
  bits.resize(count);
  for (std::size_t at = 0; at < count; ++at) {
    bits[at] = (static_cast<unsigned>(packed[at / 8]) >> (at % 8) & 1u) != 0;
  }
  const bool clean = count % 8 == 0 || static_cast<unsigned>(packed.back()) >> (count % 8) == 0;
  DOWNPOUR_CHECK_AS(ProtocolError, clean, "bits are set behind the last of ", count);
}

template <typename T>
void get_items(Reader& in, std::vector<T>& items) {
  items.resize(in.get_count(least_bytes<T>()));
  for (T& item : items) {
    get_field(in, item);
  }
}

inline void get_value(Reader& in, bool& value) { value = get_flag(in) != 0; }
inline void get_value(Reader& in, std::uint8_t& value) { value = get_flag(in); }
inline void get_value(Reader& in, std::string& text) { text = in.get_string(); }
inline void get_value(Reader& in, std::optional<Verdict>& verdict) { verdict = get_verdict(in); }
inline void get_value(Reader& in, Verdict& verdict) {
  const auto found = get_verdict(in);
  DOWNPOUR_CHECK_AS(ProtocolError, found.has_value(), "a verdict is 1 to 4, found 0");
  verdict = *found;
}
inline void get_value(Reader& in, LeaseTable& table) { table = LeaseTable::decode(in); }
inline void get_value(Reader& in, Schema& schema) { schema = decode_schema(in.get_bytes()); }
inline void get_value(Reader& in, std::vector<bool>& bits) { get_bits(in, bits); }
template <typename T>
void get_value(Reader& in, std::vector<T>& items) {
  get_items(in, items);
}
template <typename T, std::size_t kSize>
void get_value(Reader& in, std::array<T, kSize>& items) {
  for (T& item : items) {
    get_field(in, item);
  }
}

// Every u8 of the protocol is a flag.
template <typename T>
void get_field(Reader& in, T& value) {
  if constexpr (Composed<T>) {
    std::apply([&](auto&... field) { (get_field(in, field), ...); }, Fields<T>::of(value));
  } else if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool> && !std::same_as<T, std::uint8_t>) {
    value = in.get<T>();
  } else {
    get_value(in, value);
  }
}

template <typename T>
T decode(Bytes body) {
  Reader in(body, Fields<T>::kName);
  T message;
  get_field(in, message);
  in.finish();
  return message;
}

}  // namespace downpour::ps
