#include "csrc/base/bytes.h"

#include <limits>

namespace downpour {

Writer& Writer::put_string(std::string_view text) { return put_bytes(as_bytes(text)); }

Writer& Writer::put_bytes(Bytes bytes) {
  DOWNPOUR_CHECK(bytes.size() <= std::numeric_limits<std::uint32_t>::max(), "a field of ", bytes.size(),
                 " bytes does not fit a message; the limit is 4 GiB");
  put(static_cast<std::uint32_t>(bytes.size()));
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return *this;
}

Bytes Reader::take(std::size_t count) {
  DOWNPOUR_CHECK_AS(ProtocolError, count <= bytes_.size(), what_, ": truncated, expected ", count,
                    " more bytes, found ", bytes_.size());
  const Bytes head = bytes_.first(count);
  bytes_ = bytes_.subspan(count);
  return head;
}

std::string Reader::get_string() {
  const Bytes bytes = get_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes Reader::get_bytes() { return take(get<std::uint32_t>()); }

std::uint32_t Reader::get_count(std::size_t item_bytes) {
  const auto count = get<std::uint32_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, count <= bytes_.size() / item_bytes, what_, ": a count of ", count,
                    " items of at least ", item_bytes, " bytes does not fit the ", bytes_.size(), " bytes left");
  return count;
}

void Reader::finish() const {
  DOWNPOUR_CHECK_AS(ProtocolError, bytes_.empty(), what_, ": ", bytes_.size(), " bytes too many");
}

}  // namespace downpour
