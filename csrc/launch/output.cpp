#include "csrc/launch/output.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "csrc/base/clock.h"
#include "csrc/launch/line_splitter.h"
#include "csrc/launch/sink.h"
#include "csrc/launch/status_area.h"
#include "csrc/launch/tail.h"
#include "csrc/launch/wall_clock.h"
#include "csrc/transport/loop.h"

namespace downpour::launch {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;

struct Stream {
  Fd pipe;
  StreamOptions options;
  LineSplitter splitter;
  Sink log;
};

std::size_t columns_of(int terminal) {
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

// All but the constructor and the atomics belongs to the thread.
struct Output::State {
  explicit State(const OutputOptions& the_options)
      : options(the_options),
        out(the_options.out),
        error(the_options.error),
        events(the_options.events),
        buffer(kReadBytes, '\0') {}

  void run();
  void add(Stream& stream);
  bool read(Stream& stream);  // false: nothing there now, or the stream has ended
  void take(Stream& stream, std::string_view bytes);
  void end(Stream& stream);
  void write_log(Stream& stream, std::string_view bytes);
  void write_shown(const Stream& stream);  // `lines`
  void write_error(std::string_view text);
  void draw();
  void drain();

  OutputOptions options;
  SteadyClock clock;
  transport::Loop loop{clock};
  Sink out;
  Sink error;
  Sink events;
  StatusArea area;
  std::vector<std::string> area_lines;
  std::map<int, std::unique_ptr<Stream>> streams;  // by descriptor
  std::map<std::pair<Target, int>, Tail> tails;
  std::string buffer;
  std::string lines;
  bool over = false;

  std::atomic<bool> show_posted{false};
  std::mutex mutex;
  std::vector<std::string> wanted;  // guarded by mutex
  std::thread thread;
};

void Output::State::run() {
  while (!over) {
    loop.run_once(TimePoint::max());
  }
}

void Output::State::add(Stream& stream) {
  const auto& path = stream.options.log;
  if (!path.empty()) {
    Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) {
      write_error(concat("downpour warning: cannot write the log ", path.string(), ": ", std::strerror(errno), "\n"));
    } else {
      stream.log = Sink(std::move(file));
    }
  }
  const int fd = stream.pipe.get();
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  ::fcntl(fd, F_SETPIPE_SZ, 1 << 20);
  loop.watch(fd, EPOLLIN, [this, &stream](std::uint32_t) { read(stream); });
}

bool Output::State::read(Stream& stream) {
  const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
  if (count > 0) {
    take(stream, std::string_view(buffer).substr(0, static_cast<std::size_t>(count)));
    return true;
  }
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    end(stream);
  }
  return false;
}

void Output::State::take(Stream& stream, std::string_view bytes) {
  write_log(stream, bytes);
  if (stream.options.channel == Channel::kError) {
    tails[{stream.options.who, stream.options.life}].add(bytes);
  }
  if (stream.options.shown) {
    const std::string prefix = stream.options.prefix.text(time_of_day(std::chrono::system_clock::now()));
    lines.clear();
    stream.splitter.add(bytes, prefix, lines);
    write_shown(stream);
  }
}

void Output::State::end(Stream& stream) {
  if (stream.options.shown) {
    lines.clear();
    stream.splitter.finish(stream.options.prefix.text(time_of_day(std::chrono::system_clock::now())), lines);
    write_shown(stream);
  }
  loop.unwatch(stream.pipe.get());
  streams.erase(stream.pipe.get());
}

void Output::State::write_log(Stream& stream, std::string_view bytes) {
  if (stream.log.open() && !stream.log.write(bytes)) {
    write_error(
        concat("downpour warning: the log ", stream.options.log.string(), " ends here: ", stream.log.why(), "\n"));
  }
}

void Output::State::write_shown(const Stream& stream) {
  if (lines.empty()) {
    return;
  }
  if (stream.options.channel == Channel::kError) {
    write_error(lines);
    return;
  }
  if (options.area_below_out) {
    error.write(area.erase());
  }
  out.write(lines);
  draw();
}

void Output::State::write_error(std::string_view text) {
  error.write(area.erase());
  error.write(text);
  draw();
}

void Output::State::draw() {
  if (options.area && !area.drawn() && !area_lines.empty()) {
    error.write(area.draw(area_lines, columns_of(options.error)));
  }
}

void Output::State::drain() {
  while (!streams.empty()) {
    Stream& stream = *streams.begin()->second;
    const int fd = stream.pipe.get();
    while (read(stream)) {
    }
    if (const auto still = streams.find(fd); still != streams.end()) {
      end(*still->second);
    }
  }
  error.write(area.erase());
  area_lines.clear();
}

Output::Output(const OutputOptions& options) : state_(std::make_unique<State>(options)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Output::~Output() {
  state_->loop.post([state = state_.get()] {
    state->drain();
    state->over = true;
  });
  state_->thread.join();
}

void Output::add(Fd pipe, StreamOptions options) {
  // std::function wants something that can be copied.
  auto stream = std::make_shared<Stream>();
  stream->pipe = std::move(pipe);
  stream->options = std::move(options);
  state_->loop.post([state = state_.get(), stream] {
    auto& kept = state->streams[stream->pipe.get()];
    kept = std::make_unique<Stream>(std::move(*stream));
    state->add(*kept);
  });
}

void Output::say(std::string text) {
  state_->loop.post([state = state_.get(), text = std::move(text)] { state->write_error(text); });
}

void Output::event(std::string line) {
  state_->loop.post([state = state_.get(), line = std::move(line)] {
    if (state->events.open() && !state->events.write(line)) {
      state->write_error(concat("downpour warning: the --json stream ends here: ", state->events.why(), "\n"));
    }
  });
}

void Output::show(std::vector<std::string> lines) {
  State* state = state_.get();
  {
    const std::lock_guard lock(state->mutex);
    state->wanted = std::move(lines);
  }
  if (!state->show_posted.exchange(true)) {
    state->loop.post([state] {
      state->show_posted = false;
      {
        const std::lock_guard lock(state->mutex);
        state->area_lines = state->wanted;
      }
      state->error.write(state->options.area ? state->area.erase() : std::string());
      state->draw();
    });
  }
}

void Output::finish(std::function<void()> done) {
  state_->loop.post([state = state_.get(), done = std::move(done)] {
    state->drain();
    done();
  });
}

std::vector<std::string> Output::last_errors(Target who, int life, std::size_t count) const {
  const auto at = state_->tails.find({who, life});
  return at == state_->tails.end() ? std::vector<std::string>() : at->second.lines(count);
}

}  // namespace downpour::launch
