#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/transport/harness.h"

// The one contract of connection.h, which every medium must keep: the tests of connection_*_test.cpp run once for each.
namespace downpour::transport {

class ConnectionSuite : public testing::TestWithParam<Kind> {};

#define DOWNPOUR_FOR_EACH_MEDIUM(Suite)                                                                         \
  INSTANTIATE_TEST_SUITE_P(Media, Suite,                                                                        \
                           testing::Values(Kind::kInproc, Kind::kSharedMemory, Kind::kTcpIpv4, Kind::kTcpIpv6), \
                           [](const testing::TestParamInfo<Kind>& kind) { return std::string(name(kind.param)); })

// A body or bulk that says what it is: byte i of message m.
inline std::vector<std::byte> pattern(std::size_t size, std::size_t message) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + message * 31 + (i >> 8)) & 0xff);
  }
  return bytes;
}

inline std::string text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace downpour::transport
