#include "csrc/launch/serve.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <sstream>

#include "csrc/launch/run_folder.h"
#include "csrc/transport/tcp.h"
#include "tests/launch/launched.h"
#include "tests/transport/raw_peer.h"

namespace downpour::launch {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Serve, TheInstructionsAreWhatOneTypes) {
  ServeOptions options;
  options.servers = 2;
  options.workers = 3;
  options.silence = std::chrono::milliseconds(7500);
  const std::string text = serve_instructions(options, "127.0.0.1:9", {"127.0.0.1:1", "127.0.0.1:2"}, 0xabc);
  EXPECT_THAT(
      text,
      HasSubstr(
          "export DOWNPOUR_ROLE=worker WORLD_SIZE=3 DOWNPOUR_JOB=0000000000000abc DOWNPOUR_COORDINATOR=127.0.0.1:9 "
          "DOWNPOUR_SERVERS=2 DOWNPOUR_SERVER_ENDPOINTS=127.0.0.1:1,127.0.0.1:2 DOWNPOUR_SILENCE=7.5 "));
  EXPECT_THAT(text, HasSubstr("downpour serve --index 1 --servers 2 --workers 3 --address 127.0.0.1:2 --coordinator "
                              "127.0.0.1:9 --job 0000000000000abc --silence 7.5\n"));
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

std::string value_of(const std::string& name, const std::string& text) {
  for (const std::string& variable : exported(text)) {
    if (variable.starts_with(name + "=")) {
      return variable.substr(name.size() + 1);
    }
  }
  return {};
}

// `trainer 20 arguments...`, killed when the test has seen enough of it.
class Trainer {
 public:
  Trainer(std::vector<std::string> variables, int rank, const std::vector<std::string>& arguments = {}) {
    auto [error, error_writing] = make_pipe();
    error_ = std::move(error);
    ChildSpec spec;
    spec.program = test_program("trainer");
    spec.arguments = {"trainer", "20"};
    spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
    spec.variables = std::move(variables);
    spec.variables.push_back("RANK=" + std::to_string(rank));
    spec.standard_error = error_writing.get();
    Piped piped = spawn_piped(std::move(spec));
    out_ = std::move(piped.output);
    child_ = std::move(piped.child);
  }
  ~Trainer() {
    if (child_) {
      kill();
    }
  }

  void wait_half_way() const { EXPECT_THAT(read_once(out_), HasSubstr("half-way")); }
  Ended wait() { return wait_for(*child_); }
  void kill() {
    child_->signal(SIGKILL);
    wait();
    child_.reset();
  }
  std::string error() const { return read_once(error_); }

 private:
  Fd out_;
  Fd error_;
  std::optional<Child> child_;
};

Ended run_trainer(std::vector<std::string> variables, int rank) { return Trainer(std::move(variables), rank).wait(); }

TEST(Serve, AServerByHandTrainsAWorkerAndEndsWithIt) {
  Launched server({"serve", "--workers", "1"});
  server.wait_for("\nRANK=0");
  EXPECT_TRUE(run_trainer(exported(server.out()), 0).status.success());
  EXPECT_EQ(server.wait(), 0) << server.err();
}

// Ports that were free a moment ago: by hand somebody has to choose them.
std::vector<std::string> free_endpoints(int count) {
  std::vector<std::string> endpoints;
  std::vector<Fd> sockets;
  for (int index = 0; index < count; ++index) {
    sockets.push_back(transport::bind_socket({.host = "127.0.0.1", .port = 0}, transport::Exposure::kLoopbackOnly));
    endpoints.push_back(transport::local_address(sockets.back().get()).text());
  }
  return endpoints;
}

// What server 0 says that one types for server 1.
std::vector<std::string> second_server(const std::string& instructions) {
  std::istringstream words(instructions.substr(instructions.find("downpour serve") + 9));
  std::vector<std::string> arguments;
  for (std::string word; words >> word;) {
    arguments.push_back(word);
  }
  return arguments;
}

TEST(Serve, TwoServersByHand) {
  const auto endpoints = free_endpoints(2);
  Launched first({"serve", "--servers", "2", "--workers", "1", "--address", endpoints[0], "--endpoints",
                  endpoints[0] + "," + endpoints[1]});
  first.wait_for("--job");
  Launched second(second_server(first.out()));
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

// Whoever was told "0.0.0.0" would look for the server on its own machine.
TEST(Serve, BadInput_AnAddressOfNoMachineIsNotHandedOut) {
  const Finish own = launch({"serve", "--address", "0.0.0.0:0", "--coordinator", "127.0.0.1:0", "--insecure"});
  EXPECT_EQ(own.exit_code, 2);
  EXPECT_THAT(own.err,
              HasSubstr("--address 0.0.0.0:0 is no address that workers can connect to; also pass --endpoints"));
  const Finish listed = launch({"serve", "--servers", "2", "--endpoints", "127.0.0.1:1,0.0.0.0:2"});
  EXPECT_EQ(listed.exit_code, 2);
  EXPECT_THAT(listed.err, HasSubstr("--endpoints 0.0.0.0:2 is no address"));
  Launched told(
      {"serve", "--address", "0.0.0.0:0", "--coordinator", "0.0.0.0:0", "--endpoints", "127.0.0.1:7000", "--insecure"});
  told.wait_for("\nRANK=0");
  EXPECT_THAT(told.out(), HasSubstr("DOWNPOUR_SERVER_ENDPOINTS=127.0.0.1:7000 "));
  EXPECT_THAT(told.out(), HasSubstr("DOWNPOUR_COORDINATOR=127.0.0.1:"));
}

// Also one that stands still has the folder: it would go on with older snapshots.
TEST(Serve, BadInput_ARunFolderIsOneServersAtATime) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string run = (folder.path() / "deep" / "run").string();
  Launched first({"serve", "--run-folder", run});
  first.wait_for("\nRANK=0");
  first.signal(SIGSTOP);
  const Finish second = launch({"serve", "--run-folder", run});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr(concat("--run-folder ", run, ": process ", first.pid(), " uses it (lock-0)")));
  Launched other(
      {"serve", "--run-folder", run, "--index", "1", "--servers", "2", "--coordinator", "127.0.0.1:1", "--job", "1"});
  other.wait();
  EXPECT_THAT(other.err(), Not(HasSubstr("uses it"))) << "another index writes other files";
  first.signal(SIGKILL);
  first.wait();
  Launched third({"serve", "--run-folder", run});
  third.wait_for("\nRANK=0");
}

TEST(Serve, BadInput_TheFolderOfARunningJobIsRefused) {
  const RunFolder job(std::filesystem::path(::testing::TempDir()) / concat("job-", ::getpid()), "");
  const Finish finish = launch({"serve", "--run-folder", job.snapshots().string()});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err,
              HasSubstr(concat("--run-folder ", job.path().string(), ": process ", ::getpid(), " uses it (lock)")));
  std::filesystem::remove_all(job.path());
}

TEST(Serve, BadInput_NothingIsPrintedForEndpointsThatCannotWork) {
  for (const std::string endpoints : {"127.0.0.1:0", "127.0.0.1:7001,127.0.0.1:7002"}) {
    const Finish finish = launch({"serve", "--endpoints", endpoints});
    EXPECT_EQ(finish.exit_code, 2);
    EXPECT_EQ(finish.out, "");
    EXPECT_THAT(finish.err, HasSubstr("--endpoints"));
  }
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
  auto arguments = second_server(first.out());
  std::ranges::replace(arguments, "127.0.0.1:2", "127.0.0.1:0");
  Launched second(arguments);
  first.signal(SIGKILL);
  EXPECT_NE(second.wait(), 0);
}

TEST(Serve, InsecureIsSaidOutLoud) {
  Launched server({"serve", "--insecure"});
  server.wait_for("warning: INSECURE");
}

// ---- members that do not fit ----------------------------------------------------------------------------------------------

class ServeMismatch : public ::testing::Test {
 protected:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr auto kPromised = std::chrono::seconds(10);
#else
  static constexpr auto kPromised = std::chrono::seconds(1);
#endif

  ServeMismatch() { server_.wait_for("\nRANK=0"); }

  // A worker of another version knocks there; what it is told within the time promised.
  static std::string knock(const std::string& address) {
    transport::Hello hello;
    hello.protocol = transport::kProtocolVersion + 1;
    hello.build = "9.9.9";
    transport::RawPeer peer(transport::parse_address(address));
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_TRUE(peer.send(transport::FrameType::kHello, transport::encode(hello)));
    pollfd waiting{.fd = peer.fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&waiting, 1, 60'000), 1);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromised);
    const auto answer = peer.receive();
    const auto frame = transport::decode_handshake_frame(answer);
    EXPECT_TRUE(frame.is(transport::FrameType::kRefused));
    return transport::decode_refusal(frame.body).reason;
  }

  RunFolder folder_{"", ::testing::TempDir()};
  std::string fifo_ = (folder_.path() / "fifo").string();
  Gate gate_{fifo_ + ".0"};
  Launched server_{{"serve", "--workers", "2"}};
};

TEST_F(ServeMismatch, AnotherVersionIsRefusedInTimeAndBothSidesSayWhy) {
  const Trainer first(exported(server_.out()), 0, {fifo_});
  first.wait_half_way();  // so that the shards listen
  for (const char* door : {"DOWNPOUR_COORDINATOR", "DOWNPOUR_SERVER_ENDPOINTS"}) {
    const std::string reason = knock(value_of(door, server_.out()));
    EXPECT_THAT(reason, HasSubstr(concat("version ", transport::kProtocolVersion + 1)));
    EXPECT_THAT(reason, HasSubstr("9.9.9"));
  }
  server_.wait_for(concat("version ", transport::kProtocolVersion + 1), 2);
}

TEST_F(ServeMismatch, AnotherSchemaIsRefusedInTimeAndBothSidesSayWhy) {
  const Trainer first(exported(server_.out()), 0, {fifo_});
  first.wait_half_way();
  const auto begun = std::chrono::steady_clock::now();
  Trainer second(exported(server_.out()), 1, {"", "1001"});
  EXPECT_EQ(second.wait().status.code, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kPromised);
  EXPECT_THAT(second.error(), ContainsRegex("worker 1 is refused: .*weight.*100[01]"));
  server_.wait_for("worker 1 is refused: ");
}

// ---- the end by a signal --------------------------------------------------------------------------------------------------

TEST(Serve, CtrlCWritesALastSnapshot) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string fifo = (folder.path() / "fifo").string();
  const Gate gate(fifo + ".0");
  const std::vector<std::string> arguments = {"serve", "--run-folder", (folder.path() / "run").string(),
                                              "--snapshot-interval", "100000"};
  Launched server(arguments);
  server.wait_for("\nRANK=0");
  Trainer trainer(exported(server.out()), 0, {fifo});
  trainer.wait_half_way();
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(), 128 + SIGINT) << server.err();
  trainer.kill();
  Launched again(arguments);
  again.wait_for("\nRANK=0");
  EXPECT_TRUE(run_trainer(exported(again.out()), 0).status.success());
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_THAT(again.err(), HasSubstr("restored version 10,"));
}

// A disk that hangs: the last snapshot goes into a FIFO that nobody empties.
TEST(Serve, AnotherSignalKillsAtOnce) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string fifo = (folder.path() / "fifo").string();
  const Gate gate(fifo + ".0");
  const std::string run = (folder.path() / "run").string();
  Launched server({"serve", "--run-folder", run, "--snapshot-interval", "100000"});
  server.wait_for("\nRANK=0");
  const Trainer trainer(exported(server.out()), 0, {fifo, "1000000"});
  trainer.wait_half_way();
  const std::string disk = run + "/shard-0-of-1.safetensors.tmp";
  ASSERT_EQ(::mkfifo(disk.c_str(), 0600), 0);
  server.signal(SIGINT);
  const Fd reading(::open(disk.c_str(), O_RDONLY | O_CLOEXEC));  // until the server writes there
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 128 + SIGTERM) << server.err();
}

TEST(Serve, CtrlCOfServerZeroTellsWorkersAndServersWhy) {
  const RunFolder folder("", ::testing::TempDir());
  const std::string fifo = (folder.path() / "fifo").string();
  const Gate gate(fifo + ".0");
  const auto endpoints = free_endpoints(2);
  Launched first({"serve", "--servers", "2", "--workers", "1", "--address", endpoints[0], "--endpoints",
                  endpoints[0] + "," + endpoints[1]});
  first.wait_for("--job");
  Launched second(second_server(first.out()));
  Trainer trainer(exported(first.out()), 0, {fifo});
  trainer.wait_half_way();
  first.signal(SIGINT);
  EXPECT_EQ(first.wait(), 128 + SIGINT) << first.err();
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.err(),
              HasSubstr("the job was aborted: server 0, which holds the job together, was ended by SIGINT"));
  // The worker goes on only now, and finds no server that it could wait for.
  gate.let_through();
  EXPECT_EQ(trainer.wait().status.code, 1);
  EXPECT_THAT(trainer.error(), HasSubstr("worker 0: server 0, which holds the job together, was ended by SIGINT"));
}

TEST(Serve, AFailureOfServerZeroTellsWorkersWhy) {
  const RunFolder folder("", ::testing::TempDir());
  const std::vector<std::string> arguments = {"serve", "--run-folder", (folder.path() / "run").string()};
  for (const bool broken : {false, true}) {
    Launched server(arguments);
    server.wait_for("\nRANK=0");
    Trainer trainer(exported(server.out()), 0);
    EXPECT_EQ(trainer.wait().status.success(), !broken);
    EXPECT_EQ(server.wait(), broken ? 2 : 0) << server.err();
    if (broken) {
      EXPECT_THAT(trainer.error(), ContainsRegex("server 0, which holds the job together, failed: .*safetensors"));
    }
    for (const auto& file : std::filesystem::directory_iterator(folder.path() / "run")) {
      if (file.path().extension() == ".safetensors") {
        std::filesystem::resize_file(file.path(), 100);
      }
    }
  }
}

}  // namespace
}  // namespace downpour::launch
