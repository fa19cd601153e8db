#include "csrc/transport/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

TEST(Address, ReadsHostsAndPorts) {
  EXPECT_EQ(parse_address("127.0.0.1:4000"), (Address{"127.0.0.1", 4000}));
  EXPECT_EQ(parse_address("localhost:0"), (Address{"localhost", 0}));
  EXPECT_EQ(parse_address("[::1]:65535"), (Address{"::1", 65535}));
  EXPECT_EQ(parse_address("[fe80::1%eth0]:1"), (Address{"fe80::1%eth0", 1}));
}

TEST(Address, WritesWhatItReads) {
  for (const char* text : {"127.0.0.1:4000", "[::1]:4000", "worker-3.example:80"}) {
    EXPECT_EQ(parse_address(text).text(), text);
  }
}

TEST(Address, RefusesEverythingElseAndQuotesIt) {
  for (const std::string text :
       {"", ":", "host", "host:", ":4000", "host:65536", "host:-1", "host:+1", "host: 1", "host:1 ", "host:0x1",
        "::1:4000", "[::1]", "[::1]4000", "[]:4000", "[::1:4000", "::1]:4000", "a:b:1", "host:99999999999"}) {
    try {
      parse_address(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("'" + text + "'"));
    }
  }
}

}  // namespace
}  // namespace downpour::transport
