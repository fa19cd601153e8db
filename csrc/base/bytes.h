#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "csrc/base/error.h"

// Little-endian encoding of small messages, and its bounds-checked counterpart for bytes from outside.
namespace downpour {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

static_assert(std::endian::native == std::endian::little, "Downpour's wire format is little-endian");

class Writer {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T> Writer& put(const T& value) {
    // Not insert(): inlined, g++ 12 takes it for an overflow.
    const std::size_t end = buffer_.size();
    buffer_.resize(end + sizeof(T));
    std::memcpy(buffer_.data() + end, &value, sizeof(T));
    return *this;
  }
  Writer& put_string(std::string_view text);  // u32 length, then the characters
  Writer& put_bytes(Bytes bytes);             // u32 length, then the bytes
  Bytes bytes() const { return buffer_; }
  std::vector<std::byte> take() { return std::move(buffer_); }
  void clear() { buffer_.clear(); }  // keeps the capacity: the steady state allocates nothing

 private:
  std::vector<std::byte> buffer_;
};

// Errors: ProtocolError when the bytes end too early, or (finish) when some are left; the message names `what`.
class Reader {
 public:
  Reader(Bytes bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string get_string();
  Bytes get_bytes();
  // A count of items of at least `item_bytes` each, refused when the rest of the bytes cannot hold that many.
  std::uint32_t get_count(std::size_t item_bytes);
  Bytes take(std::size_t count);
  std::size_t left() const { return bytes_.size(); }
  void finish() const;

 private:
  Bytes bytes_;
  std::string_view what_;
};

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace downpour
