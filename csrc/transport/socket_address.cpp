#include "csrc/transport/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace downpour::transport {

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return ntohl(in.sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& in6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&in6) || (IN6_IS_ADDR_V4MAPPED(&in6) && in6.s6_addr[12] == 127);
}

Address SocketAddress::address() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host));
    return {host, ntohs(in.sin_port)};
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
  ::inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof(host));
  return {host, ntohs(in.sin6_port)};
}

}  // namespace downpour::transport
