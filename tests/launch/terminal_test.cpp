// What a user sees on a terminal: progress in place, program output untouched, a debugger.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "csrc/launch/variables.h"
#include "tests/launch/launched.h"

extern char** environ;

namespace downpour::launch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// As much of a terminal as the launcher uses: lines, carriage returns, cursor up, clear to the end.
class Screen {
 public:
  explicit Screen(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      at = bytes[at] == '\x1b' ? escape(bytes, at) : plain(bytes, at);
    }
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::size_t plain(const std::string& bytes, std::size_t at) {
    if (bytes[at] == '\n') {
      ++row_;
      lines_.resize(std::max(lines_.size(), row_ + 1));
    } else if (bytes[at] == '\r') {
      column_ = 0;
    } else {
      std::string& line = lines_[row_];
      line.resize(std::max(line.size(), column_ + 1), ' ');
      line[column_++] = bytes[at];
    }
    return at + 1;
  }
  std::size_t escape(const std::string& bytes, std::size_t at) {
    std::size_t end = at + 2;
    const auto number = static_cast<std::size_t>(std::atoi(bytes.c_str() + end));
    while (end < bytes.size() && std::isdigit(static_cast<unsigned char>(bytes[end])) != 0) {
      ++end;
    }
    if (bytes[end] == 'A') {
      EXPECT_GE(row_, number) << "it erases what is not its own";
      row_ -= std::min(row_, number);
    } else if (bytes[end] == 'J') {
      lines_.resize(row_ + 1);
      lines_[row_].resize(std::min(lines_[row_].size(), column_));
    }
    return end + 1;
  }

  std::vector<std::string> lines_{1};
  std::size_t row_ = 0;
  std::size_t column_ = 0;
};

class TerminalTraining : public ::testing::Test {
 protected:
  RunFolder folder_{"", ::testing::TempDir()};
  std::string fifo_ = (folder_.path() / "gate").string();
  Gate gates_[2] = {Gate(fifo_ + ".0"), Gate(fifo_ + ".1")};
};

TEST_F(TerminalTraining, ProgressIsDrawnInPlaceAndGoneInTheEnd) {
  Launched job({"run", "-s", "1", "-w", "2", "--", test_program("trainer"), "20", fifo_}, Stage::kTerminal);
  job.wait_for("worker 0  step        10");
  job.wait_for("worker 1  step        10");
  const Screen before(job.out());
  for (const char* worker : {"worker 0", "worker 1"}) {
    EXPECT_THAT(
        before.lines(),
        Contains(MatchesRegex(std::string(worker) +
                              "  step        10  +[0-9,.]+ samples/s  loss 0\\.1000  staleness [0-9]+\\.[0-9]")));
  }
  gates_[0].let_through();
  gates_[1].let_through();
  EXPECT_EQ(job.wait(), 0);
  const Screen after(job.out());
  EXPECT_THAT(after.lines(), Contains("[worker 0] half-way"));
  EXPECT_THAT(after.lines(), Contains("[worker 1] half-way"));
  EXPECT_THAT(after.lines(), Contains("[worker 0] value 40"));
  EXPECT_THAT(after.lines(), Contains(HasSubstr("succeeded after")));
  EXPECT_THAT(after.lines(), Not(Contains(StartsWith("worker 0  step")))) << "progress is not part of what stays";
}

TEST_F(TerminalTraining, OutputBesideProgressStaysWhole) {
  // The background lines begin once progress is drawn.
  const Gate lines(fifo_ + ".lines");
  Launched job(
      {"run", "-s", "1", "--", "sh", "-c",
       test_program("trainer") + " 20 " + fifo_ + " & read x < " + fifo_ +
           ".lines; i=0; while [ $i -lt 200 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; echo done; wait"},
      Stage::kTerminal);
  job.wait_for("worker 0  step");
  lines.let_through();
  job.wait_for("[worker 0] done");
  gates_[0].let_through();
  EXPECT_EQ(job.wait(), 0);
  int next_line = 0;
  int next_error = 0;
  const Screen screen(job.out());
  for (const std::string& line : screen.lines()) {
    next_line += line == "[worker 0] line " + std::to_string(next_line) ? 1 : 0;
    next_error += line == "[worker 0] error " + std::to_string(next_error) ? 1 : 0;
  }
  EXPECT_EQ(next_line, 200);
  EXPECT_EQ(next_error, 200);
}

TEST(Terminal, APlainProgramSeesNoControlSequences) {
  Launched job({"run", "-q", "--", "echo", "x"}, Stage::kTerminal);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "x\r\n");
}

TEST(Terminal, ADebuggerOwnsTheTerminalAndSwitchesDeadlinesOff) {
  if (!find_program("gdb", Variables(static_cast<const char* const*>(environ)))) {
    GTEST_SKIP() << "gdb is not installed";
  }
  Launched job(
      {"run", "-w", "2", "--gdb", "0", "--", "sh", "-c", "echo rank $RANK without deadlines: $DOWNPOUR_NO_DEADLINES"},
      Stage::kTerminal, {"TERM=dumb", "HOME=/nonexistent", "DEBUGINFOD_URLS="});
  job.wait_for("(gdb)");
  job.type("run\n");
  job.wait_for("rank 0 without deadlines: 1");
  job.wait_for("(gdb)", 2);
  job.type("quit\n");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("[worker 1] rank 1 without deadlines: 1"));
  EXPECT_TRUE(job.all_gone());
}

}  // namespace
}  // namespace downpour::launch
