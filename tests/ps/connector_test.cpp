#include "csrc/ps/connector.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <string>

#include "tests/ps/wire.h"

namespace downpour::ps {
namespace {

std::atomic<int> g_lookups{0};  // of kName
std::atomic<int> g_outage{0};   // lookups of kName to fail from now on, as without a name server
constexpr const char* kName = "node.of.the.test";

int look_up_really(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  using Lookup = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto system = reinterpret_cast<Lookup>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return system(host, service, hints, found);
}

}  // namespace

// In the place of the system's: knows one name more.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  if (host == nullptr || std::string(host) != kName) {
    return look_up_really(host, service, hints, found);
  }
  ++g_lookups;
  return g_outage-- > 0 ? EAI_AGAIN : look_up_really("127.0.0.1", service, hints, found);
}

namespace {

class NetworkConnectorTest : public testing::Test {
 protected:
  NetworkConnectorTest() {
    g_lookups = 0;
    g_outage = 0;
  }
  static std::string named(const ServerThread& server) {
    return concat(kName, ":", transport::parse_address(server.address()).port);
  }
};

TEST_F(NetworkConnectorTest, ANameIsLookedUpOnceHoweverOftenTheServerIsReachedAgain) {
  const Agreement agreement = agreement_of(64);
  const Fd kept = bind_anywhere();
  auto server = std::make_unique<ServerThread>(agreement, SharedMemory::kNever, "", kept.get());
  WireWorker worker(agreement, named(*server), SharedMemory::kNever, 0);
  worker.initialise();
  for (int i = 0; i < 3; ++i) {
    server.reset();
    server = std::make_unique<ServerThread>(agreement, SharedMemory::kNever, "", kept.get());
    worker.push(std::vector<float>(64, 1));
    worker.client.settle();
  }
  EXPECT_GE(worker.client.counters().reconnects, 3u);
  EXPECT_EQ(g_lookups, 1);
}

TEST_F(NetworkConnectorTest, AnOutageOfTheNameServersIsWaitedOut) {
  const Agreement agreement = agreement_of(64);
  const ServerThread server(agreement, SharedMemory::kNever);
  WireWorker worker(agreement, named(server), SharedMemory::kNever, 0);
  g_outage = 3;
  worker.initialise();
  worker.push(std::vector<float>(64, 1));
  EXPECT_EQ(worker.client.settle().applied, 1u);
  EXPECT_EQ(g_lookups, 4);
}

TEST_F(NetworkConnectorTest, ANameThatDoesNotExistIsTheCallersMistake) {
  const Agreement agreement = agreement_of(64);
  WireWorker worker(agreement, "no such host:1", SharedMemory::kNever, 0);
  try {
    worker.client.open();
    FAIL() << "expected an error";
  } catch (const CommError& error) {
    FAIL() << error.what();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no such host:1 does not resolve"));
  }
}

}  // namespace
}  // namespace downpour::ps
