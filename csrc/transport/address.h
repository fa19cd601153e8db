#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace downpour::transport {

// "127.0.0.1:4000", "[::1]:4000", "localhost:4000". A value.
struct Address {
  std::string host;
  std::uint16_t port = 0;
  std::string text() const;  // with brackets around an IPv6 host
  bool operator==(const Address&) const = default;
};

// Errors: Error naming the text and the expected form.
Address parse_address(std::string_view text);

}  // namespace downpour::transport
