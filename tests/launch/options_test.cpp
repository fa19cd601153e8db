#include "csrc/launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunOptions run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "run");
  const Command command = parse_command(arguments);
  if (const auto* answer = std::get_if<Answer>(&command)) {
    ADD_FAILURE() << answer->text;
    return {};
  }
  return std::get<RunOptions>(command);
}

// The text of a mistake, which must have the exit code of one.
std::string mistake(const std::vector<std::string>& arguments) {
  const Command command = parse_command(arguments);
  const auto* answer = std::get_if<Answer>(&command);
  if (answer == nullptr) {
    return "not refused";
  }
  EXPECT_EQ(answer->exit_code, kUsageError);
  return answer->text;
}

TEST(Options, DefaultsAreOneWorkerNoServerThreeRestarts) {
  const RunOptions options = run({"--", "program"});
  EXPECT_EQ(options.workers, 1);
  EXPECT_EQ(options.servers, 0);
  EXPECT_EQ(options.worker_restarts, 3);
  EXPECT_EQ(options.server_restarts, 3);
  EXPECT_EQ(options.address, "127.0.0.1");
  EXPECT_EQ(options.port, 0);
  EXPECT_FALSE(options.insecure);
  EXPECT_THAT(options.program, ElementsAre("program"));
}

TEST(Options, WhatFollowsTheDashesIsTheProgramsOwn) {
  const RunOptions options = run({"--workers", "4", "--", "program", "--workers", "9", "--", "-x"});
  EXPECT_EQ(options.workers, 4);
  EXPECT_THAT(options.program, ElementsAre("program", "--workers", "9", "--", "-x"));
}

TEST(Options, EveryFlagReachesItsField) {
  const RunOptions options = run({"-s",
                                  "2",
                                  "-w",
                                  "3",
                                  "--grace",
                                  "0.5",
                                  "--run-folder",
                                  "/a",
                                  "--keep",
                                  "--json",
                                  "-",
                                  "--log-dir",
                                  "/b",
                                  "--tee",
                                  "0",
                                  "--redirect",
                                  "1",
                                  "--filter",
                                  "workers",
                                  "--prefix",
                                  "{rank}:",
                                  "--threads",
                                  "5",
                                  "--address",
                                  "::1",
                                  "--port",
                                  "4000",
                                  "--insecure",
                                  "--gdb",
                                  "2",
                                  "-x",
                                  "A=1",
                                  "--env",
                                  "B",
                                  "--silence",
                                  "7",
                                  "--snapshot-interval",
                                  "60",
                                  "-q",
                                  "--",
                                  "p"});
  EXPECT_EQ(options.servers, 2);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(500));
  EXPECT_EQ(options.run_folder, "/a");
  EXPECT_TRUE(options.keep);
  EXPECT_EQ(options.json, "-");
  EXPECT_EQ(options.log_folder, "/b");
  EXPECT_EQ(options.tee, Selection::parse("0"));
  EXPECT_EQ(options.redirect, Selection::parse("1"));
  EXPECT_EQ(options.filter, Selection::parse("workers"));
  EXPECT_EQ(options.prefix, "{rank}:");
  EXPECT_EQ(options.threads, 5);
  EXPECT_EQ(options.address, "::1");
  EXPECT_EQ(options.port, 4000);
  EXPECT_TRUE(options.insecure);
  EXPECT_EQ(options.gdb, 2);
  EXPECT_THAT(options.variables, ElementsAre("A=1", "B"));
  EXPECT_EQ(options.silence, std::chrono::seconds(7));
  EXPECT_EQ(options.snapshot_interval, std::chrono::seconds(60));
  EXPECT_TRUE(options.quiet);
}

TEST(Options, RestartsAreSetTogetherOrByRole) {
  EXPECT_EQ(run({"--max-restarts", "7", "--", "p"}).server_restarts, 7);
  const RunOptions options = run({"--max-restarts", "7", "--max-worker-restarts", "1", "--", "p"});
  EXPECT_EQ(options.worker_restarts, 1);
  EXPECT_EQ(options.server_restarts, 7);
  EXPECT_EQ(run({"--max-worker-restarts", "1", "--max-restarts", "7", "--", "p"}).worker_restarts, 1) << "in any order";
}

TEST(Options, AnUnknownFlagIsNamedWithTheNearestOne) {
  const std::string text = mistake({"run", "--wrokers", "2", "--", "p"});
  EXPECT_THAT(text, HasSubstr("--wrokers"));
  EXPECT_THAT(text, HasSubstr("did you mean --workers?"));
  EXPECT_THAT(mistake({"run", "--completely-else", "--", "p"}), HasSubstr("downpour run --help"));
}

TEST(Options, AWrongValueNamesItsFlag) {
  EXPECT_THAT(mistake({"run", "--workers", "0", "--", "p"}), HasSubstr("--workers"));
  EXPECT_THAT(mistake({"run", "--servers", "two", "--", "p"}), HasSubstr("--servers"));
  EXPECT_THAT(mistake({"run", "--port", "70000", "--", "p"}), HasSubstr("--port"));
  EXPECT_THAT(mistake({"run", "--tee", "everyone", "--", "p"}), HasSubstr("--tee"));
  EXPECT_THAT(mistake({"run", "--prefix", "{pid}", "--", "p"}), HasSubstr("{role}"));
  EXPECT_THAT(mistake({"run", "--gdb", "2", "--workers", "2", "--", "p"}), HasSubstr("--workers is 2"));
  EXPECT_THAT(mistake({"run", "--port", "65535", "--", "p"}), HasSubstr("--port 65535"));
  EXPECT_THAT(mistake({"run", "--workers"}), HasSubstr("--workers"));
}

TEST(Options, ASilenceThatEveryProcessWouldBreakIsRefused) {
  for (const std::string value : {"0", "0.1", "0.19"}) {
    EXPECT_THAT(
        mistake({"run", "--silence", value, "--", "p"}),
        HasSubstr("--silence: " + value + " is too short: expected at least 0.2 s, since processes are heard from"));
    EXPECT_THAT(mistake({"serve", "--silence", value}), HasSubstr("--silence: " + value + " is too short"));
  }
  EXPECT_THAT(mistake({"run", "--silence", "-1", "--", "p"}), HasSubstr("--silence"));
  EXPECT_EQ(run({"--silence", "0.2", "--", "p"}).silence, std::chrono::milliseconds(200));
}

TEST(Options, ADurationIsAFiniteNumberOfSeconds) {
  for (const std::string value : {"nan", "-nan", "inf", "-inf", "-1", "1e7", "soon", ""}) {
    for (const std::string flag : {"--grace", "--snapshot-interval", "--silence"}) {
      const std::string text = mistake({"run", flag, value, "--", "p"});
      EXPECT_THAT(text, HasSubstr(flag)) << value;
      EXPECT_THAT(text, HasSubstr("seconds from 0 to 1000000, found '" + value + "'"));
    }
    EXPECT_THAT(mistake({"serve", "--snapshot-interval", value}), HasSubstr("--snapshot-interval")) << value;
  }
  EXPECT_EQ(run({"--grace", "0", "--", "p"}).grace, Duration::zero());
  EXPECT_EQ(run({"--grace", "1e-1", "--", "p"}).grace, std::chrono::milliseconds(100));
}

TEST(Options, AVariableHasAName) {
  for (const std::string variable : {"=a", "=", ""}) {
    EXPECT_THAT(mistake({"run", "-x", variable, "--", "p"}),
                HasSubstr("--env '" + variable + "': expected NAME or NAME=VALUE"));
  }
  EXPECT_THAT(run({"-x", "A=", "--", "p"}).variables, ElementsAre("A="));
}

TEST(Options, OnlyRunRunsAProgram) {
  EXPECT_THAT(mistake({"serve", "--", "./train"}), HasSubstr("serve: it runs no program, found './train' after --"));
  EXPECT_THAT(mistake({"doctor", "--", "./train"}), HasSubstr("doctor: it runs no program"));
}

TEST(Options, AMissingProgramIsAMistakeWithItsFix) {
  EXPECT_THAT(mistake({"run"}), HasSubstr("-- program"));
  EXPECT_THAT(mistake({"run", "--workers", "2", "--"}), HasSubstr("-- program"));
  EXPECT_THAT(mistake({"run", "program", "argument"}), HasSubstr("downpour run [options] -- program"));
}

TEST(Options, UnknownCommandsAreNamed) {
  EXPECT_THAT(mistake({"rnu"}), HasSubstr("'rnu'"));
  EXPECT_THAT(mistake({}), HasSubstr("run, serve or doctor"));
}

TEST(Options, HelpAndVersionAreNoMistakes) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"serve", "-h"}, {"--version"}}) {
    const Command command = parse_command(arguments);
    const auto* answer = std::get_if<Answer>(&command);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(answer->exit_code, 0) << answer->text;
  }
  EXPECT_THAT(std::get<Answer>(parse_command({"run", "--help"})).text, HasSubstr("--max-restarts"));
  EXPECT_THAT(std::get<Answer>(parse_command({"--version"})).text, HasSubstr("downpour "));
}

TEST(Options, ServeNeedsWhatServerZeroPrinted) {
  EXPECT_THAT(mistake({"serve", "--index", "1", "--servers", "2"}), HasSubstr("--coordinator"));
  EXPECT_THAT(mistake({"serve", "--index", "1", "--servers", "2", "--coordinator", "127.0.0.1:1"}), HasSubstr("--job"));
  EXPECT_THAT(mistake({"serve", "--index", "2", "--servers", "2"}), HasSubstr("--servers is 2"));
  EXPECT_THAT(mistake({"serve", "--servers", "2"}), HasSubstr("--endpoints"));
  EXPECT_THAT(mistake({"serve", "--job", "xyz"}), HasSubstr("--job"));
  EXPECT_THAT(mistake({"serve", "--servers", "2", "--endpoints", "a:1"}), HasSubstr("expected 2 addresses, found 1"));
  EXPECT_THAT(mistake({"serve", "--endpoints", "a:1,b:2"}), HasSubstr("expected 1 address, found 2"));
  const auto command =
      parse_command({"serve", "--servers", "2", "--endpoints", "a:1,b:2", "--job", "00ff", "--address", "a:1"});
  const auto& options = std::get<ServeOptions>(command);
  EXPECT_THAT(options.endpoints, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(options.job, 255u);
}

TEST(Options, ServersHaveEachAnAddressThatWorkersCanConnectTo) {
  EXPECT_THAT(mistake({"serve", "--endpoints", "127.0.0.1:0"}),
              HasSubstr("--endpoints 127.0.0.1:0: workers cannot connect to port 0; give server 0 a port, and its "
                        "--address the same"));
  EXPECT_THAT(mistake({"serve", "--servers", "3", "--endpoints", "a:1,b:1,a:1"}),
              HasSubstr("--endpoints: servers 0 and 2 cannot both be at a:1"));
  EXPECT_THAT(mistake({"serve", "--endpoints", "nonsense"}), HasSubstr("--endpoints nonsense"));
}

TEST(Options, DoctorTakesAProgram) {
  EXPECT_EQ(std::get<DoctorOptions>(parse_command({"doctor", "./train"})).program, "./train");
  EXPECT_EQ(std::get<DoctorOptions>(parse_command({"doctor"})).program, "");
}

}  // namespace
}  // namespace downpour::launch
