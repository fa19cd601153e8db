#include "csrc/launch/events.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

namespace downpour::launch {
namespace {

class EventsTest : public ::testing::Test {
 protected:
  nlohmann::json last() {
    EXPECT_TRUE(line_.ends_with('\n'));
    EXPECT_EQ(line_.find('\n'), line_.size() - 1) << "one line each";
    const auto json = nlohmann::json::parse(line_);
    EXPECT_TRUE(json.contains("time"));
    return json;
  }
  std::string line_;
  Events events_{[this](std::string line) { line_ = std::move(line); }};
};

TEST_F(EventsTest, StartReadyExitRestartNameTheProcess) {
  events_.start(server(1), 2, 77, "/logs/server-1.err");
  EXPECT_EQ(last()["event"], "start");
  EXPECT_EQ(last()["role"], "server");
  EXPECT_EQ(last()["rank"], 1);
  EXPECT_EQ(last()["restart"], 2);
  EXPECT_EQ(last()["pid"], 77);
  events_.ready(worker(3), 0);
  EXPECT_EQ(last()["event"], "ready");
  events_.exit(worker(3), 0, 78, {.signal = SIGKILL});
  EXPECT_EQ(last()["signal"], "SIGKILL");
  EXPECT_EQ(last()["exit_code"], 137);
  events_.exit(worker(3), 0, 78, {.code = 4});
  EXPECT_TRUE(last()["signal"].is_null());
  events_.restart({.who = worker(3), .restart = 1, .allowed = 3, .pause = std::chrono::milliseconds(50)});
  EXPECT_EQ(last()["event"], "restart");
  EXPECT_EQ(last()["pause_s"], 0.05);
}

TEST_F(EventsTest, TextIsEscaped) {
  events_.note("two\nlines \"quoted\" \xff");
  EXPECT_EQ(last()["event"], "note");
}

TEST_F(EventsTest, TheEndCarriesTheSummary) {
  Summary summary;
  summary.exit_code = 3;
  events_.end(summary);
  EXPECT_EQ(last()["event"], "end");
  EXPECT_EQ(last()["summary"]["exit_code"], 3);
}

TEST_F(EventsTest, ProgressListsTheWorkers) {
  events_.progress({{0, {.step = 5, .samples = 320, .samples_per_second = 100, .loss = std::nullopt, .staleness = 1}}});
  EXPECT_EQ(last()["workers"][0]["step"], 5);
  EXPECT_TRUE(last()["workers"][0]["loss"].is_null());
}

}  // namespace
}  // namespace downpour::launch
