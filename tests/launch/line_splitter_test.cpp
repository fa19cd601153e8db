#include "csrc/launch/line_splitter.h"

#include <gtest/gtest.h>

#include "csrc/base/random.h"

namespace downpour::launch {
namespace {

std::string split(LineSplitter& splitter, const std::string& bytes, const std::string& prefix) {
  std::string out;
  splitter.add(bytes, prefix, out);
  return out;
}

std::string rest(LineSplitter& splitter, const std::string& prefix) {
  std::string out;
  splitter.finish(prefix, out);
  return out;
}

TEST(LineSplitter, HoldsALineBackUntilItIsWhole) {
  LineSplitter splitter;
  EXPECT_EQ(split(splitter, "one\ntw", "> "), "> one\n");
  EXPECT_EQ(split(splitter, "o", "> "), "");
  EXPECT_EQ(split(splitter, "\n\nthree", "> "), "> two\n> \n");
}

TEST(LineSplitter, CompletesALastLineWithoutNewline) {
  LineSplitter splitter;
  split(splitter, "last", "> ");
  EXPECT_EQ(rest(splitter, "> "), "> last\n");
  EXPECT_EQ(rest(splitter, "> "), "");
}

TEST(LineSplitter, PassesAnyByte) {
  LineSplitter splitter;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != '\n') {
      bytes.push_back(static_cast<char>(byte));
    }
  }
  EXPECT_EQ(split(splitter, bytes + "\n", ""), bytes + "\n");
}

TEST(LineSplitter, CutsALineBeyondTheLimitAndKeepsItsMemoryBounded) {
  LineSplitter splitter(4);
  EXPECT_EQ(split(splitter, "abcdefghij", "> "), "> abcd\n> efgh\n");
  EXPECT_EQ(split(splitter, "\n", "> "), "> ij\n");
  EXPECT_EQ(split(splitter, "1234\n", "> "), "> 1234\n") << "a line of exactly the limit is whole";
}

TEST(LineSplitter, LosesNothingHoweverTheBytesArrive) {
  Random random(1);
  std::string bytes;
  for (int i = 0; i < 20000; ++i) {
    bytes.push_back(random.below(20) == 0 ? '\n' : static_cast<char>('a' + random.below(26)));
  }
  bytes.push_back('\n');
  LineSplitter splitter;
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto count = std::min<std::size_t>(1 + random.below(700), bytes.size() - at);
    splitter.add(std::string_view(bytes).substr(at, count), "", out);
    at += count;
  }
  EXPECT_EQ(out, bytes);
}

}  // namespace
}  // namespace downpour::launch
