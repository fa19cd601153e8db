#include "csrc/transport/address.h"

#include <charconv>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

std::uint16_t parse_port(std::string_view digits, std::string_view text) {
  std::uint16_t port = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped_at, error] = std::from_chars(digits.data(), end, port);
  DOWNPOUR_CHECK(error == std::errc{} && stopped_at == end && !digits.empty(), "address '", text,
                 "': expected a port from 0 to 65535 after the last colon, found '", digits, "'");
  return port;
}

}  // namespace

std::string Address::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? concat("[", host, "]:", port) : concat(host, ":", port);
}

Address parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  DOWNPOUR_CHECK(colon != std::string_view::npos, "address '", text,
                 "': expected host:port, as 127.0.0.1:4000 or [::1]:4000");
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else {
    DOWNPOUR_CHECK(host.find(':') == std::string_view::npos, "address '", text,
                   "': an IPv6 host stands in brackets, as [::1]:4000");
  }
  DOWNPOUR_CHECK(!host.empty() && host.find_first_of("[]") == std::string_view::npos, "address '", text,
                 "': expected a host before the port, as 127.0.0.1:4000 or [::1]:4000");
  return {std::string(host), parse_port(text.substr(colon + 1), text)};
}

}  // namespace downpour::transport
