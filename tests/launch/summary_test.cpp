#include "csrc/launch/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

namespace downpour::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

FailureRecord failure(Target who, ExitStatus status, Failed::Consequence consequence) {
  FailureRecord record{.who = who,
                       .life = 0,
                       .pid = 4242,
                       .host = "box",
                       .when = WallTime(std::chrono::seconds(1)),
                       .after = std::chrono::milliseconds(12300),
                       .status = status,
                       .consequence = consequence,
                       .peak_memory_bytes = 3'200'000'000,
                       .hint = "",
                       .last_errors = {},
                       .digest = {},
                       .log = "/run/logs/x.err"};
  for (int line = 0; line < 50; ++line) {
    record.last_errors.push_back("line " + std::to_string(line));
  }
  record.digest = {record.last_errors.end() - 10, record.last_errors.end()};
  return record;
}

Summary failed_job() {
  Summary summary;
  summary.workers = 2;
  summary.exit_code = 139;
  summary.run_folder = "/run";
  summary.failures = {failure(worker(0), {.code = 1}, Failed::Consequence::kRestart),
                      failure(worker(1), {.signal = SIGSEGV, .core_dumped = true}, Failed::Consequence::kEndsJob),
                      failure(worker(0), {.code = 1}, Failed::Consequence::kNone)};
  return summary;
}

TEST(Summary, TheCauseComesFirstWithEverythingThatHelps) {
  const Summary summary = failed_job();
  ASSERT_NE(cause(summary), nullptr);
  EXPECT_EQ(cause(summary)->who, worker(1));
  const std::string text = to_text(summary);
  EXPECT_THAT(text, HasSubstr("worker 1 failed first: killed by SIGSEGV (signal 11), core dumped"));
  EXPECT_THAT(text, HasSubstr("pid 4242 on box"));
  EXPECT_THAT(text, HasSubstr("1970-01-01T00:00:01.000Z"));
  EXPECT_THAT(text, HasSubstr("12.3 s after its start"));
  EXPECT_THAT(text, HasSubstr("peak memory 3.2 GB"));
  EXPECT_THAT(text, HasSubstr("log: /run/logs/x.err"));
  EXPECT_THAT(text, HasSubstr("  | line 49\n"));
  EXPECT_THAT(text, HasSubstr("failed with exit code 139"));
  EXPECT_THAT(text, HasSubstr("run folder /run"));
  EXPECT_LT(text.find("worker 1 failed first"), text.find("afterwards: worker 0"));
}

TEST(Summary, AHintThatTheErrorItselfGivesIsNotGivenTwice) {
  Summary summary = failed_job();
  summary.failures[1].hint = "start it with --servers";
  EXPECT_THAT(to_text(summary), HasSubstr("\n  start it with --servers\n"));
  summary.failures[1].digest = {"what(): no server; start it with --servers 1"};
  EXPECT_THAT(to_text(summary), Not(HasSubstr("\n  start it with --servers\n")));
}

TEST(Summary, ItSaysWhereFramesOfAStackWereLeftOut) {
  Summary summary = failed_job();
  EXPECT_THAT(to_text(summary), HasSubstr("  last 10 lines of standard error:\n"));
  summary.failures[1].digest = {"what(): no such shape"};
  EXPECT_THAT(to_text(summary), HasSubstr("  last 1 line of standard error, but for stack frames:\n"
                                          "  | what(): no such shape\n"));
  summary.failures[1].last_errors = summary.failures[1].digest = {};
  EXPECT_THAT(to_text(summary), HasSubstr("  it wrote nothing to standard error\n"));
}

TEST(Summary, AServerThatFailedWhenNobodyNeededItIsAWarning) {
  Summary summary;
  summary.failures = {failure(server(0), {.signal = SIGKILL}, Failed::Consequence::kHarmless)};
  EXPECT_EQ(cause(summary), nullptr);
  EXPECT_THAT(to_text(summary), HasSubstr("downpour: warning: server 0: killed by SIGKILL (signal 9) when every worker "
                                          "had finished; only its last snapshot may be missing"));
  EXPECT_THAT(to_text(summary), HasSubstr("succeeded"));
  EXPECT_EQ(nlohmann::json::parse(to_json(summary))["failures"][0]["consequence"], "none");
}

TEST(Summary, TheJsonHoldsAllKeptLinesAndTheCause) {
  const auto json = nlohmann::json::parse(to_json(failed_job()));
  EXPECT_EQ(json["exit_code"], 139);
  EXPECT_EQ(json["cause"]["role"], "worker");
  EXPECT_EQ(json["cause"]["rank"], 1);
  EXPECT_EQ(json["cause"]["signal"], "SIGSEGV");
  EXPECT_EQ(json["cause"]["exit_code"], 139);
  EXPECT_EQ(json["cause"]["core_dumped"], true);
  EXPECT_EQ(json["cause"]["host"], "box");
  EXPECT_EQ(json["cause"]["last_errors"].size(), 50u);
  EXPECT_EQ(json["failures"].size(), 3u);
  EXPECT_EQ(json["failures"][0]["consequence"], "restart");
  EXPECT_TRUE(json["failures"][0]["signal"].is_null());
}

TEST(Summary, BytesThatAreNoTextDoNotBreakTheJson) {
  Summary summary = failed_job();
  summary.failures[1].last_errors = {std::string("\xff\xfe\0binary", 9)};
  EXPECT_NO_THROW(nlohmann::json::parse(to_json(summary)));
}

TEST(Summary, APlainSuccessSaysNothing) { EXPECT_EQ(to_text(Summary{}), ""); }

TEST(Summary, WithoutServersItSaysNothingOfUpdates) {
  Summary summary;
  summary.totals.any_progress = true;
  summary.totals.samples = 64;
  EXPECT_THAT(to_text(summary), HasSubstr("samples    64\n"));
  EXPECT_THAT(to_text(summary), ::testing::Not(HasSubstr("updates")));
}

TEST(Summary, ATrainingRunSaysWhatItDid) {
  Summary summary;
  summary.servers = 1;
  summary.elapsed = std::chrono::seconds(10);
  summary.totals.any_progress = true;
  summary.totals.samples = 120000;
  summary.totals.samples_per_second = 9756;
  summary.totals.shards.applied = 200;
  summary.totals.shards.stale = 3;
  summary.totals.shards.staleness[0] = 50;
  summary.totals.shards.staleness[1] = 150;
  summary.totals.shards.max_staleness_seen = 2;
  summary.totals.shards.pushed_bytes = 1'200'000'000;
  summary.totals.shards.pulled_bytes = 1'300'000'000;
  summary.restarts = {{worker(1), 2}, {server(0), 1}};
  const std::string text = to_text(summary);
  EXPECT_THAT(text, HasSubstr("succeeded after 10.0 s"));
  EXPECT_THAT(text, HasSubstr("120,000 (9,756 samples/s)"));
  EXPECT_THAT(text, HasSubstr("1.2 GB pushed, 1.3 GB pulled"));
  EXPECT_THAT(text, HasSubstr("0: 25.0 %, 1: 75.0 %; largest 2"));
  EXPECT_THAT(text, HasSubstr("200 applied, 3 stale"));
  EXPECT_THAT(text, HasSubstr("worker 1: 2, server 0: 1"));
  EXPECT_THAT(text, Not(HasSubstr("LOST")));
}

TEST(Summary, LossAndGradientNormAreToldWhereThereAreAny) {
  Summary summary;
  summary.totals.any_progress = true;
  EXPECT_THAT(to_text(summary), Not(HasSubstr("  loss ")));
  EXPECT_THAT(to_text(summary), Not(HasSubstr("gradient")));
  auto totals = nlohmann::json::parse(to_json(summary))["totals"];
  EXPECT_FALSE(totals.contains("loss"));
  EXPECT_FALSE(totals.contains("gradient_norm"));
  EXPECT_EQ(totals["lost"], 0) << "said also where nothing was lost";
  summary.totals.loss = 0.25;
  summary.totals.shards.applied = 1;
  summary.totals.shards.last_gradient_norm = 1.5;
  EXPECT_THAT(to_text(summary), HasSubstr("  loss       0.2500"));
  EXPECT_THAT(to_text(summary), HasSubstr("  gradient   norm 1.5 "));
  totals = nlohmann::json::parse(to_json(summary))["totals"];
  EXPECT_EQ(totals["loss"], 0.25);
  EXPECT_EQ(totals["gradient_norm"], 1.5);
}

TEST(Summary, ServersCutOffAreNamedAlsoAfterAPlainSuccess) {
  Summary summary;
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary))["servers_cut_off"].empty());
  summary.cut_off = {server(0), server(2)};
  EXPECT_THAT(to_text(summary),
              HasSubstr("CUT OFF    server 0, server 2: killed before the last snapshot was written\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(summary))["servers_cut_off"], nlohmann::json({0, 2}));
}

TEST(Summary, LossesAndBrokenSnapshotsAreLoud) {
  Summary summary;
  summary.totals.any_progress = true;
  summary.totals.lost = 4;
  summary.totals.snapshot_error = "shard-0: No space left on device";
  EXPECT_THAT(to_text(summary), HasSubstr("LOST       4 pushes could not be replayed after a restart (per shard)\n"));
  EXPECT_THAT(to_text(summary), HasSubstr("SNAPSHOTS FAIL: shard-0: No space left on device"));
  EXPECT_EQ(nlohmann::json::parse(to_json(summary))["totals"]["lost"], 4);
}

}  // namespace
}  // namespace downpour::launch
