#include "csrc/launch/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "csrc/launch/run_folder.h"
#include "csrc/transport/tcp.h"
#include "tests/launch/launched.h"

extern char** environ;

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

using Json = nlohmann::json;

std::vector<Json> parse_lines(const std::string& text) {
  std::vector<Json> events;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    events.push_back(Json::parse(line));
  }
  return events;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    result.push_back(line);
  }
  std::sort(result.begin(), result.end());
  return result;
}

// A folder for what a job leaves behind.
class RunTest : public ::testing::Test {
 protected:
  std::string run_folder() const { return (folder_.path() / "run").string(); }
  Json summary() const { return Json::parse(read_file(run_folder() + "/summary.json")); }
  std::string shell_file(const std::string& name) const { return (folder_.path() / name).string(); }
  RunFolder folder_{"", ::testing::TempDir()};
};

// ---- L1, L3, L12: what a process is given ------------------------------------------------------------------------------

TEST_F(RunTest, L1_EveryProcessKnowsItsPlace) {
  const Finish finish = launch({"run", "-s", "2", "-w", "3", "--", "sh", "-c",
                                "echo $RANK $LOCAL_RANK $WORLD_SIZE $DOWNPOUR_ROLE $DOWNPOUR_SERVERS"});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(sorted_lines(finish.out), ::testing::ElementsAre("[worker 0] 0 0 3 worker 2", "[worker 1] 1 1 3 worker 2",
                                                               "[worker 2] 2 2 3 worker 2"));
}

TEST_F(RunTest, L1_OneWorkerNoServerIsTheDefaultAndHasNoPrefix) {
  EXPECT_EQ(launch({"run", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE, $DOWNPOUR_SERVERS servers"}).out,
            "0 of 1, 0 servers\n");
}

TEST_F(RunTest, L2_LinksNeitherLibTorchNorPython) {
  const Finish finish = launch({"run", "-q", "--", "sh", "-c", "cat /proc/$PPID/maps"});
  EXPECT_THAT(finish.out, HasSubstr("libstdc++"));
  EXPECT_THAT(finish.out, Not(HasSubstr("libtorch")));
  EXPECT_THAT(finish.out, Not(HasSubstr("libpython")));
}

TEST_F(RunTest, L3_TheRendezvousSocketIsInheritedByRankZeroAlone) {
  const Finish finish =
      launch({"run", "-w", "2", "--", "sh", "-c", "readlink /proc/self/fd/${DOWNPOUR_MASTER_FD:-none} || echo none"});
  EXPECT_EQ(finish.exit_code, 0);
  EXPECT_THAT(finish.out, HasSubstr("[worker 0] socket:["));
  EXPECT_THAT(finish.out, HasSubstr("[worker 1] none"));
}

TEST_F(RunTest, L3_ManyJobsStartedAtOnceNeverCollide) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kJobs = 20;
#else
  constexpr int kJobs = 100;
#endif
  std::vector<std::unique_ptr<Launched>> jobs;
  for (int job = 0; job < kJobs; ++job) {
    jobs.push_back(std::make_unique<Launched>(
        std::vector<std::string>{"run", "-q", "-s", "1", "--tee", "none", "--", "sh", "-c",
                                 "echo $MASTER_PORT $DOWNPOUR_COORDINATOR $DOWNPOUR_SERVER_ENDPOINTS"}));
  }
  for (const auto& job : jobs) {
    EXPECT_EQ(job->wait(), 0) << job->err();
  }
}

TEST_F(RunTest, L12_TheUsersThreadsWinAndThePlanSaysSo) {
  const Finish finish = launch({"run", "-w", "2", "--", "sh", "-c", "echo $OMP_NUM_THREADS"}, {"OMP_NUM_THREADS=7"});
  EXPECT_THAT(finish.out, HasSubstr("[worker 0] 7\n"));
  EXPECT_THAT(finish.err, HasSubstr("OMP_NUM_THREADS=7 as you set it"));
  EXPECT_THAT(launch({"run", "-w", "2", "--threads", "3", "--", "true"}).err, HasSubstr("3 threads each (--threads)"));
}

TEST_F(RunTest, ExtraVariablesReachEveryProcess) {
  const Finish finish = launch({"run", "-w", "2", "-x", "A=b c", "--", "sh", "-c", "echo \"$A\""});
  EXPECT_THAT(sorted_lines(finish.out), ::testing::ElementsAre("[worker 0] b c", "[worker 1] b c"));
}

// ---- bad input ---------------------------------------------------------------------------------------------------------

TEST_F(RunTest, BadInput_AWrongFlagExits2AndIsNamedWithTheFix) {
  const Finish finish = launch({"run", "--worker", "2", "--", "true"});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr("--worker"));
  EXPECT_THAT(finish.err, HasSubstr("did you mean --workers?"));
  EXPECT_EQ(finish.out, "");
}

TEST_F(RunTest, BadInput_AMissingProgramExits2AndSaysHowToNameIt) {
  EXPECT_EQ(launch({"run", "--workers", "2"}).exit_code, 2);
  const Finish missing = launch({"run", "--", "no-such-program"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("'no-such-program' was not found"));
  EXPECT_THAT(missing.err, HasSubstr("./no-such-program"));
}

TEST_F(RunTest, BadInput_AProgramThatIsNoneExits2) {
  const std::string path = shell_file("text");
  std::ofstream(path) << "\x01no program\n";
  ::chmod(path.c_str(), 0700);
  const Finish finish = launch({"run", "-s", "1", "--run-folder", run_folder(), "--", path});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr("#!/bin/sh"));
}

TEST_F(RunTest, BadInput_APortInUseIsNamedWithItsFlag) {
  const Fd taken = transport::bind_socket({.host = "127.0.0.1", .port = 0}, transport::Exposure::kLoopbackOnly);
  const std::string port = std::to_string(transport::local_address(taken.get()).port);
  const Finish finish = launch({"run", "--port", port, "--", "true"});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr("--port " + port));
  EXPECT_THAT(finish.err, HasSubstr("in use"));
}

TEST_F(RunTest, BadInput_OffLoopbackWithoutAKeyIsRefusedUnlessInsecure) {
  const Finish refused = launch({"run", "--address", "0.0.0.0", "--", "true"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--insecure"));
  const Finish allowed = launch({"run", "--address", "0.0.0.0", "--insecure", "--", "true"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_THAT(allowed.err, HasSubstr("INSECURE"));
  const Finish quiet = launch({"run", "-q", "--address", "0.0.0.0", "--insecure", "--", "true"});
  EXPECT_THAT(quiet.err, HasSubstr("warning: INSECURE")) << "not to be silenced";
}

TEST_F(RunTest, BadInput_ARunFolderThatAnotherJobUsesIsRefused) {
  const RunFolder used(run_folder(), "");
  const Finish finish = launch({"run", "--run-folder", run_folder(), "--", "true"});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr(" uses it (lock); choose another one"));
}

TEST_F(RunTest, BadInput_AFolderThatServersCannotWriteIntoIsRefused) {
  std::filesystem::create_directories(run_folder());
  std::ofstream(run_folder() + "/snapshots") << "no folder";
  const Finish finish = launch({"run", "-s", "1", "--run-folder", run_folder(), "--", "true"});
  EXPECT_EQ(finish.exit_code, 2);
  EXPECT_THAT(finish.err, HasSubstr("cannot write snapshots into " + run_folder() + "/snapshots: Not a directory"));
  EXPECT_EQ(launch({"run", "--run-folder", run_folder(), "--", "true"}).exit_code, 0) << "no server, no snapshot";
}

// The PATH of -x is the program's; the debugger is the user's own.
TEST_F(RunTest, ADebuggerIsFoundWhateverPathTheProgramGets) {
  if (!find_program("gdb", Variables(static_cast<const char* const*>(environ)))) {
    GTEST_SKIP() << "gdb is not installed";
  }
  const Finish finish = launch({"run", "--gdb", "0", "-x", "PATH=/nowhere", "--", "/bin/true"},
                               {"HOME=/nonexistent", "DEBUGINFOD_URLS="});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(finish.out, HasSubstr("GNU gdb"));
}

TEST_F(RunTest, BadInput_MistakesLeaveNothingBehind) {
  const std::string temporary = (folder_.path() / "tmp").string();
  ::mkdir(temporary.c_str(), 0700);
  launch({"run", "-x", "NOT_SET_ANYWHERE", "--", "true"}, {"TMPDIR=" + temporary});
  launch({"run", "--log-dir", "/proc/nowhere", "--", "true"}, {"TMPDIR=" + temporary});
  launch({"run", "--json", "/proc/nowhere", "--", "true"}, {"TMPDIR=" + temporary});
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

// ---- L7, L8, L10: how a job ends -----------------------------------------------------------------------------------------

TEST_F(RunTest, L7_SuccessIs0AndLeavesNoFolder) {
  const std::string temporary = (folder_.path() / "tmp").string();
  ::mkdir(temporary.c_str(), 0700);
  const Finish finish = launch({"run", "-w", "2", "--", "true"}, {"TMPDIR=" + temporary});
  EXPECT_EQ(finish.exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
  EXPECT_THAT(finish.err, Not(HasSubstr("failed")));
}

TEST_F(RunTest, L7_TheFirstFailuresCodeIsTheJobs) {
  const Finish finish =
      launch({"run", "-w", "3", "--max-restarts", "0", "--", "sh", "-c", "test $RANK = 1 && exit 7; exec sleep 1000"});
  EXPECT_EQ(finish.exit_code, 7);
  EXPECT_THAT(finish.err, HasSubstr("worker 1 failed first: exit code 7"));
  EXPECT_THAT(finish.err, Not(HasSubstr("worker 0 failed")));
}

TEST_F(RunTest, L7_ADeathBySignalIs128PlusItsNumber) {
  EXPECT_EQ(launch({"run", "-q", "--max-restarts", "0", "--", "sh", "-c", "kill -SEGV $$"}).exit_code, 139);
}

TEST_F(RunTest, L8_TheSummaryNamesEverything) {
  const Finish finish =
      launch({"run", "--run-folder", run_folder(), "--max-restarts", "0", "--", "sh", "-c",
              "i=0; while [ $i -lt 80 ]; do echo line $i >&2; i=$((i+1)); done; printf tail >&2; kill -ABRT $$"});
  EXPECT_EQ(finish.exit_code, 134);
  const Json cause = summary()["cause"];
  EXPECT_EQ(cause["role"], "worker");
  EXPECT_EQ(cause["rank"], 0);
  EXPECT_EQ(cause["signal"], "SIGABRT");
  EXPECT_TRUE(cause["core_dumped"].is_boolean());
  EXPECT_GT(cause["pid"], 1);
  EXPECT_FALSE(cause["host"].get<std::string>().empty());
  EXPECT_GT(cause["peak_memory_bytes"], 0);
  EXPECT_EQ(cause["last_errors"].size(), 50u);
  EXPECT_EQ(cause["last_errors"].back(), "tail");
  EXPECT_EQ(cause["log"], run_folder() + "/logs/worker-0.err");
  EXPECT_THAT(finish.err, HasSubstr("log: " + run_folder() + "/logs/worker-0.err"));
  EXPECT_THAT(finish.err, HasSubstr("  | tail\n"));
}

TEST_F(RunTest, L8_AStackDoesNotHideWhatAnExceptionSays) {
  const Finish finish = launch({"run", "--run-folder", run_folder(), "--max-restarts", "0", "--", "bash", "-c",
                                "echo '  what():  no such shape' >&2; echo 'Exception raised from f at x.cpp:1 (most "
                                "recent call first):' >&2; for i in {0..70}; do echo \"frame #$i: f + 0x1\" >&2; done; "
                                "exit 6"});
  EXPECT_THAT(finish.err, HasSubstr("  last 1 line of standard error, but for stack frames:\n"
                                    "  |   what():  no such shape\n"));
  EXPECT_EQ(summary()["cause"]["last_errors"].size(), 50u);
  EXPECT_EQ(summary()["cause"]["last_errors"].back(), "frame #70: f + 0x1");
}

TEST_F(RunTest, L8_AKillFromOutsideIsToldFromOurOwn) {
  launch({"run", "--run-folder", run_folder(), "-w", "2", "--max-restarts", "0", "--", "sh", "-c",
          "test $RANK = 0 && kill -KILL $$; exec sleep 1000"});
  EXPECT_THAT(summary()["cause"]["hint"], StartsWith("nobody in this job sent that SIGKILL"));
  EXPECT_EQ(summary()["failures"].size(), 1u) << "the other worker was ended by us, which is no failure";
}

TEST_F(RunTest, L10_LogsOfFailedRanksStay) {
  const std::string temporary = (folder_.path() / "tmp").string();
  ::mkdir(temporary.c_str(), 0700);
  const Finish finish =
      launch({"run", "-w", "2", "--", "sh", "-c", "echo $RANK:$DOWNPOUR_RESTARTS >&2; test $DOWNPOUR_RESTARTS = 1"},
             {"TMPDIR=" + temporary});
  EXPECT_EQ(finish.exit_code, 0) << "all recovered";
  ASSERT_FALSE(std::filesystem::is_empty(temporary));
  const auto kept = std::filesystem::directory_iterator(temporary)->path();
  EXPECT_THAT(finish.err, HasSubstr("run folder " + kept.string()));
  EXPECT_THAT(read_file(kept / "logs/worker-0.err") + read_file(kept / "logs/worker-1.err"), HasSubstr(":0\n"));
  EXPECT_EQ(read_file(kept / "logs/worker-1.restart-1.err"), "1:1\n");
}

// ---- L9: output ----------------------------------------------------------------------------------------------------------

TEST_F(RunTest, L9_LinesOfRanksNeverMixWhateverTheWritesAre) {
  const Finish finish =
      launch({"run", "-q", "-w", "4", "--prefix", "{role}{rank}|", "--", test_program("printer"), "500", "300"});
  EXPECT_EQ(finish.exit_code, 0);
  for (const std::string& channel : {finish.out, finish.err}) {
    std::vector<int> next(4, 0);
    std::istringstream lines(channel);
    for (std::string line; std::getline(lines, line);) {
      int prefix = -1;
      int rank = -1;
      int number = -1;
      if (line.ends_with("|last")) {
        continue;
      }
      ASSERT_EQ(std::sscanf(line.c_str(), "worker%d|line %d of rank %d ", &prefix, &number, &rank), 3) << line;
      ASSERT_TRUE(line.ends_with(". end")) << line;
      EXPECT_EQ(prefix, rank);
      EXPECT_EQ(number, next.at(static_cast<std::size_t>(rank))++) << "a line was lost or reordered";
    }
    EXPECT_THAT(next, ::testing::Each(500));
  }
  EXPECT_THAT(finish.out, HasSubstr("|last\n")) << "a last line without newline gets one";
}

TEST_F(RunTest, L9_ThePrefixIsATemplate) {
  const Finish finish = launch({"run", "--prefix", "{host} {role}-{rank} {time}> ", "--", "echo", "x"});
  EXPECT_TRUE(std::regex_match(finish.out, std::regex(R"(\S+ worker-0 \d\d:\d\d:\d\d> x\n)"))) << finish.out;
}

TEST_F(RunTest, L9_FilterShowsSomeAndLogsAll) {
  const Finish finish =
      launch({"run", "-w", "3", "--filter", "1", "--run-folder", run_folder(), "--", "sh", "-c", "echo rank $RANK"});
  EXPECT_EQ(finish.out, "[worker 1] rank 1\n");
  EXPECT_EQ(read_file(run_folder() + "/logs/worker-2.out"), "rank 2\n");
}

TEST_F(RunTest, L9_RedirectLogsOnlyAndTeeNoneLogsNothing) {
  const std::string logs = shell_file("logs");
  const Finish finish = launch(
      {"run", "-w", "2", "--tee", "none", "--redirect", "0", "--log-dir", logs, "--", "sh", "-c", "echo rank $RANK"});
  EXPECT_EQ(finish.out, "[worker 1] rank 1\n");
  EXPECT_EQ(read_file(logs + "/worker-0.out"), "rank 0\n");
  EXPECT_FALSE(std::filesystem::exists(logs + "/worker-1.out"));
}

TEST_F(RunTest, L9_BinaryOutputComesThroughWhole) {
  const std::string path = shell_file("bytes");
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      bytes.push_back(static_cast<char>(byte));
    }
  }
  bytes += "\n";
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(launch({"run", "-q", "--", "cat", path}).out, bytes);
}

// The program finds the signal as the launcher did: its own files are its own business.
TEST_F(RunTest, L9_ALogThatMayNotGrowEndsOutLoudAndNobodyElse) {
  for (const std::string before : {"", "trap '' XFSZ; "}) {
    const Finish finish = launch({"run", "-q", "--tee", "none", "--", "bash", "-c",
                                  before + "ulimit -f 50; exec " + DOWNPOUR_PROGRAM + " run --run-folder " +
                                      run_folder() + " -- bash -c 'seq 20000; head -c 100000 /dev/zero > " +
                                      shell_file("own") + "; echo head ended with $?'"});
    EXPECT_EQ(finish.exit_code, 0) << finish.err;
    EXPECT_THAT(finish.out, HasSubstr("20000\n"));
    EXPECT_THAT(finish.out, HasSubstr(before.empty() ? "head ended with 153\n" : "head ended with 1\n"));
    EXPECT_THAT(finish.err, HasSubstr("logs/worker-0.out ends here: File too large"));
  }
}

// ---- L11: restarts ---------------------------------------------------------------------------------------------------------

TEST_F(RunTest, L11_WithoutServersAnyDeathRestartsAllAndTheCountIsVisible) {
  const Finish finish = launch({"run", "-w", "2", "--run-folder", run_folder(), "--", "sh", "-c",
                                "echo life $DOWNPOUR_RESTARTS; test $RANK$DOWNPOUR_RESTARTS = 10 && exit 3; test "
                                "$DOWNPOUR_RESTARTS = 1 && exit 0; exec sleep 1000"});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(finish.out, HasSubstr("[worker 0] life 1\n"));
  EXPECT_THAT(finish.out, HasSubstr("[worker 1] life 1\n"));
  EXPECT_THAT(finish.err, HasSubstr("worker 1: exit code 3; restart 1 of 3"));
  EXPECT_EQ(summary()["restarts"].size(), 2u);
}

TEST_F(RunTest, L11_WithServersAWorkerRestartsAlone) {
  const std::string fifo = shell_file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Finish finish = launch({"run", "-s", "1", "-w", "2", "--", "sh", "-c",
                                "echo life $DOWNPOUR_RESTARTS; test $RANK = 0 && read x < " + fifo +
                                    " && exit 0; test $DOWNPOUR_RESTARTS = 0 && exit 9; echo go > " + fifo});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(sorted_lines(finish.out),
              ::testing::ElementsAre("[worker 0] life 0", "[worker 1] life 0", "[worker 1] life 1"));
  EXPECT_THAT(finish.err, HasSubstr("restarts   worker 1: 1"));
}

TEST_F(RunTest, L11_RestartsEndWithTheLimit) {
  const Finish finish = launch(
      {"run", "-s", "1", "--max-worker-restarts", "2", "--", "sh", "-c", "echo life $DOWNPOUR_RESTARTS; exit 4"});
  EXPECT_EQ(finish.exit_code, 4);
  EXPECT_THAT(sorted_lines(finish.out),
              ::testing::ElementsAre("[worker 0] life 0", "[worker 0] life 1", "[worker 0] life 2"));
  EXPECT_THAT(finish.err, HasSubstr("--max-restarts"));
}

// ---- L15: events -------------------------------------------------------------------------------------------------------------

TEST_F(RunTest, L15_TheEventStreamHasStandardOutputToItself) {
  const Finish finish = launch(
      {"run", "-s", "1", "-w", "1", "--json", "-", "--", "sh", "-c", "echo printed; test $DOWNPOUR_RESTARTS = 1"});
  EXPECT_EQ(finish.exit_code, 0) << finish.err;
  EXPECT_THAT(finish.err, HasSubstr("[worker 0] printed\n"));
  std::vector<std::string> story;
  for (const Json& event : parse_lines(finish.out)) {
    const std::string name = event["event"];
    if (name == "start" || name == "exit" || name == "restart" || name == "end") {
      story.push_back(name + (event.contains("role") ? " " + event["role"].get<std::string>() : ""));
    }
  }
  EXPECT_THAT(story, ::testing::ElementsAre("start server", "start worker", "exit worker", "restart worker",
                                            "start worker", "exit worker", "exit server", "end"));
}

TEST_F(RunTest, L15_TheEventStreamMayBeAFile) {
  const std::string path = shell_file("events");
  launch({"run", "--json", path, "--", "true"});
  const auto events = parse_lines(read_file(path));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front()["event"], "plan");
  EXPECT_EQ(events.back()["event"], "end");
  EXPECT_EQ(events.back()["exit_code"], 0);
}

}  // namespace
}  // namespace downpour::launch
