#include "csrc/launch/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>
#include <ctime>
#include <future>
#include <optional>

#include "csrc/base/random.h"
#include "csrc/launch/run_folder.h"
#include "tests/launch/launched.h"

namespace downpour::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// 48 MB at 100 MB/s is half a second of a core for the output, and as much for the ends that the test holds. Counted in
// processor time: a busy machine makes it later, not more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kFloodSeconds = 20;
#else
constexpr double kFloodSeconds = 1;
#endif

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Pipe {
  Fd reading;
  Fd writing;
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reading = Fd(ends[0]);
    writing = Fd(ends[1]);
  }
};

void write_text(const Fd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd.get(), text.data(), text.size());
    ASSERT_GT(count, 0);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::string read_all(const Fd& fd) {
  std::string text;
  std::string buffer(1 << 20, '\0');
  for (ssize_t count = 0; (count = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer, 0, static_cast<std::size_t>(count));
  }
  return text;
}

// An Output whose channels are read by threads of the test.
class OutputTest : public ::testing::Test {
 protected:
  void open(OutputOptions options = {}) {
    options.out = out_.writing.get();
    options.error = error_.writing.get();
    output_.emplace(options);
    out_text_ = std::async(std::launch::async, [this] { return read_all(out_.reading); });
    error_text_ = std::async(std::launch::async, [this] { return read_all(error_.reading); });
  }
  void TearDown() override {
    output_.reset();
    out_.writing.reset();
    error_.writing.reset();
  }
  Fd add(StreamOptions options) {
    Pipe pipe;
    output_->add(std::move(pipe.reading), std::move(options));
    return std::move(pipe.writing);
  }
  void finish() {
    std::promise<void> done;
    output_->finish([&] { done.set_value(); });
    done.get_future().wait();
  }
  std::string out() { return output_.reset(), out_.writing.reset(), out_text_.get(); }
  std::string error() { return output_.reset(), error_.writing.reset(), error_text_.get(); }

  Pipe out_;
  Pipe error_;
  std::optional<Output> output_;
  std::future<std::string> out_text_;
  std::future<std::string> error_text_;
  RunFolder folder_{"", ::testing::TempDir()};
};

TEST_F(OutputTest, LinesAreWholeAndCarryTheirPrefix) {
  open();
  Fd first = add({.who = worker(0), .prefix = Prefix("[{rank}] ").of(worker(0), "h")});
  Fd second = add({.who = worker(1), .prefix = Prefix("[{rank}] ").of(worker(1), "h")});
  write_text(first, "one ");
  write_text(second, "two\n");
  write_text(first, "half\nlast");
  first.reset();
  second.reset();
  finish();
  const std::string text = out();
  EXPECT_THAT(text, HasSubstr("[0] one half\n"));
  EXPECT_THAT(text, HasSubstr("[1] two\n"));
  EXPECT_THAT(text, HasSubstr("[0] last\n"));
}

TEST_F(OutputTest, FinishTakesWhatIsLeftEvenFromAPipeThatIsStillOpen) {
  open();
  Fd pipe = add({.who = worker(0)});
  write_text(pipe, "written before the end");
  finish();
  EXPECT_EQ(out(), "written before the end\n");
}

TEST_F(OutputTest, ChannelsStayApartAndHiddenOnesAreOnlyLogged) {
  open();
  Fd shown = add({.who = worker(0), .channel = Channel::kError});
  Fd hidden = add({.who = worker(1), .shown = false, .log = folder_.path() / "log"});
  write_text(shown, "to error\n");
  write_text(hidden, "binary \0 without newline");
  shown.reset();
  hidden.reset();
  finish();
  EXPECT_EQ(error(), "to error\n");
  EXPECT_EQ(out(), "");
  EXPECT_EQ(read_file(folder_.path() / "log"), std::string("binary "));
}

TEST_F(OutputTest, ALogHoldsTheBytesAsTheyCameAndIsAppendedTo) {
  const auto log = folder_.path() / "log";
  std::string bytes;
  Random random(7);
  for (int i = 0; i < 300'000; ++i) {
    bytes.push_back(static_cast<char>(random.below(256)));
  }
  for (int life = 0; life < 2; ++life) {
    open();
    Fd pipe = add({.who = worker(0), .log = log});
    write_text(pipe, bytes);
    pipe.reset();
    finish();
    out();
    error_.writing.reset();
    error_text_.get();
    out_ = Pipe();
    error_ = Pipe();
  }
  EXPECT_EQ(read_file(log), bytes + bytes);
}

TEST_F(OutputTest, ALogThatCannotBeWrittenIsSaidOnceAndCostsNothingElse) {
  open();
  Fd pipe = add({.who = worker(0), .log = "/dev/full"});
  Fd other = add({.who = worker(1), .log = "/no/such/folder/log"});
  for (int i = 0; i < 3; ++i) {
    write_text(pipe, "line\n");
  }
  pipe.reset();
  other.reset();
  finish();
  EXPECT_EQ(out(), "line\nline\nline\n");
  const std::string text = error();
  EXPECT_THAT(text, HasSubstr("the log /dev/full ends here: No space left on device\n"));
  EXPECT_EQ(text.find("/dev/full"), text.rfind("/dev/full"));
  EXPECT_THAT(text, HasSubstr("cannot write the log /no/such/folder/log"));
}

TEST_F(OutputTest, TheLastErrorsOfALifeAreKept) {
  open();
  Fd first = add({.who = worker(0), .life = 0, .channel = Channel::kError});
  Fd second = add({.who = worker(0), .life = 1, .channel = Channel::kError, .shown = false});
  write_text(first, "a\nb\nc\n");
  write_text(second, "d");
  first.reset();
  second.reset();
  finish();
  EXPECT_THAT(output_->last_errors(worker(0), 0, 2), ElementsAre("b", "c"));
  EXPECT_THAT(output_->last_errors(worker(0), 1, 2), ElementsAre("d"));
  EXPECT_TRUE(output_->last_errors(worker(1), 0, 2).empty());
}

TEST_F(OutputTest, ASlowReaderSlowsTheWriterDownAndLosesNothing) {
  // Nobody reads `out`: the writer must find no room at last, with bounded memory in between.
  output_.emplace(OutputOptions{.out = out_.writing.get(), .error = error_.writing.get()});
  Fd pipe = add({.who = worker(0)});
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  const std::string line(1023, 'x');
  std::size_t written = 0;
  pollfd room{.fd = pipe.get(), .events = POLLOUT, .revents = 0};
  while (::poll(&room, 1, 500) == 1 && written < (64u << 20)) {
    const ssize_t count = ::write(pipe.get(), (line + "\n").data(), 1024);
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  EXPECT_LT(written, 16u << 20) << "the output swallows without bound";
  out_text_ = std::async(std::launch::async, [this] { return read_all(out_.reading); });
  pipe.reset();
  finish();
  EXPECT_EQ(out().size(), written);
}

TEST_F(OutputTest, AReaderThatWentAwayIsNoReasonToStop) {
  output_.emplace(OutputOptions{.out = out_.writing.get(), .error = error_.writing.get()});
  ::signal(SIGPIPE, SIG_IGN);
  out_.reading.reset();
  Fd pipe = add({.who = worker(0), .log = folder_.path() / "log"});
  write_text(pipe, std::string(1 << 20, 'x'));
  pipe.reset();
  finish();
  EXPECT_EQ(read_file(folder_.path() / "log").size(), 1u << 20);
}

TEST_F(OutputTest, ProgressLinesAreErasedBeforeOutputAndRedrawnAfterIt) {
  open({.area = true, .area_below_out = false});
  output_->show({"step 1", "step 2"});
  Fd pipe = add({.who = worker(0), .channel = Channel::kError});
  finish();  // empties the queue: the area is drawn, then erased
  output_->show({"step 3"});
  output_->say("note\n");
  pipe.reset();
  finish();
  EXPECT_THAT(error(), EndsWith("step 3\n\r\x1b[1A\x1b[Jnote\nstep 3\n\r\x1b[1A\x1b[J"));
}

TEST_F(OutputTest, EventsHaveAChannelOfTheirOwn) {
  Pipe events;
  open({.events = events.writing.get()});
  output_->event("{}\n");
  finish();
  output_.reset();
  events.writing.reset();
  EXPECT_EQ(read_all(events.reading), "{}\n");
}

TEST_F(OutputTest, AHundredMegabytesASecondPassWhole) {
  open();
  Fd pipe = add({.who = worker(0), .prefix = Prefix("[0] ")});
  const std::string line(95, 'x');
  std::string block;
  for (int i = 0; i < 10'000; ++i) {
    block += line + "\n";
  }
  const double begun = processor_seconds();
  for (int i = 0; i < 50; ++i) {
    write_text(pipe, block);
  }
  pipe.reset();
  finish();
  const double took = processor_seconds() - begun;
  EXPECT_EQ(out().size(), 500'000u * 100);
  RecordProperty("processor_s", std::to_string(took));
  EXPECT_LT(took, kFloodSeconds);
}

}  // namespace
}  // namespace downpour::launch
