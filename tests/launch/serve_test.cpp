#include "csrc/launch/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "csrc/transport/tcp.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Serve, TheInstructionsAreWhatOneTypes) {
  ServeOptions options;
  options.servers = 2;
  options.workers = 3;
  const std::string text = serve_instructions(options, "127.0.0.1:9", {"127.0.0.1:1", "127.0.0.1:2"}, 0xabc);
  EXPECT_THAT(
      text,
      HasSubstr(
          "export DOWNPOUR_ROLE=worker WORLD_SIZE=3 DOWNPOUR_JOB=0000000000000abc DOWNPOUR_COORDINATOR=127.0.0.1:9 "
          "DOWNPOUR_SERVERS=2 DOWNPOUR_SERVER_ENDPOINTS=127.0.0.1:1,127.0.0.1:2"));
  EXPECT_THAT(text, HasSubstr("downpour serve --index 1 --servers 2 --workers 3 --address 127.0.0.1:2 --coordinator "
                              "127.0.0.1:9 --job 0000000000000abc\n"));
  EXPECT_THAT(text, Not(HasSubstr("--insecure")));
  options.insecure = true;
  EXPECT_THAT(serve_instructions(options, "a:9", {"a:1", "b:2"}, 1), HasSubstr("--insecure"));
}

// The variables of the line that begins with "export".
std::vector<std::string> exported(const std::string& text) {
  std::istringstream words(text.substr(text.find("export ") + 7, text.find("\nRANK=") - text.find("export ") - 7));
  std::vector<std::string> variables;
  for (std::string word; words >> word;) {
    variables.push_back(word);
  }
  return variables;
}

Ended run_trainer(std::vector<std::string> variables, int rank) {
  ChildSpec spec;
  spec.program = test_program("trainer");
  spec.arguments = {"trainer", "20"};
  spec.variables = std::move(variables);
  spec.variables.push_back("RANK=" + std::to_string(rank));
  Child child = Child::spawn(spec);
  return wait_for(child);
}

TEST(Serve, AServerByHandTrainsAWorkerAndEndsWithIt) {
  Launched server({"serve", "--workers", "1"});
  server.wait_for("\nRANK=0");
  EXPECT_TRUE(run_trainer(exported(server.out()), 0).status.success());
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(Serve, TwoServersByHand) {
  // Ports that were free a moment ago: by hand somebody has to choose them.
  std::vector<std::string> endpoints;
  {
    std::vector<Fd> sockets;
    for (int index = 0; index < 2; ++index) {
      sockets.push_back(transport::bind_socket({.host = "127.0.0.1", .port = 0}, transport::Exposure::kLoopbackOnly));
      endpoints.push_back(transport::local_address(sockets.back().get()).text());
    }
  }
  Launched first({"serve", "--servers", "2", "--workers", "1", "--address", endpoints[0], "--endpoints",
                  endpoints[0] + "," + endpoints[1]});
  first.wait_for("--job");
  std::istringstream words(first.out().substr(first.out().find("downpour serve") + 9));
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) {
    arguments.push_back(word);
  }
  Launched second(arguments);
  EXPECT_TRUE(run_trainer(exported(first.out()), 0).status.success());
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST(Serve, BadInput_OffLoopbackWithoutAKeyIsRefusedUnlessInsecure) {
  const Finish refused = launch({"serve", "--address", "0.0.0.0:0"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--address 0.0.0.0:0"));
  EXPECT_THAT(refused.err, HasSubstr("--insecure"));
  const Finish nowhere = launch({"serve", "--address", "0.0.0.0:0", "--insecure"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("--endpoints"));
}

TEST(Serve, BadInput_APortInUseIsNamedWithItsFlag) {
  const Fd taken = transport::bind_socket({.host = "127.0.0.1", .port = 0}, transport::Exposure::kLoopbackOnly);
  const std::string address = transport::local_address(taken.get()).text();
  const Finish finish = launch({"serve", "--address", address});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr("--address " + address));
  EXPECT_THAT(finish.err, HasSubstr("in use"));
}

TEST(Serve, BadInput_AnAddressThatIsNoneIsNamed) {
  EXPECT_EQ(launch({"serve", "--address", "nonsense"}).exit_code, 2);
  EXPECT_THAT(launch({"serve", "--address", "nonsense"}).err, HasSubstr("--address nonsense"));
}

TEST(Serve, ServerZeroGoneEndsTheOthers) {
  Launched first({"serve", "--servers", "2", "--workers", "1", "--endpoints", "127.0.0.1:1,127.0.0.1:2"});
  first.wait_for("--job");
  std::istringstream words(first.out().substr(first.out().find("downpour serve") + 9));
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) {
    arguments.push_back(word == "127.0.0.1:2" ? "127.0.0.1:0" : word);
  }
  Launched second(arguments);
  first.signal(SIGKILL);
  EXPECT_NE(second.wait(), 0);
}

}  // namespace
}  // namespace downpour::launch
