#include "tests/launch/launched.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>

#include "csrc/base/random.h"
#include "csrc/launch/descendants.h"
#include "csrc/launch/variables.h"

extern char** environ;

namespace downpour::launch {
namespace {

constexpr int kPatienceMs = 60'000;

// False at the end of the channel.
bool append(int fd, std::string& to) {
  char buffer[65536];
  const ssize_t count = ::read(fd, buffer, sizeof(buffer));
  if (count > 0) {
    to.append(buffer, static_cast<std::size_t>(count));
  }
  return count > 0;
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

bool wait_for_end(pid_t pid) {
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd waiting{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return !pidfd || ::poll(&waiting, 1, kPatienceMs) == 1;
}

}  // namespace

std::string test_program(const std::string& name) { return std::string(DOWNPOUR_TEST_BIN) + "/" + name; }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Piped spawn_piped(ChildSpec spec) {
  auto [reading, writing] = make_pipe();
  spec.standard_output = writing.get();
  return {Child::spawn(spec), std::move(reading)};
}

std::string read_once(const Fd& fd) {
  std::string text(65536, '\0');
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

Ended wait_for(Child& child) {
  pollfd waiting{.fd = child.pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&waiting, 1, kPatienceMs), 1) << "a child did not end";
  return child.reap().value_or(Ended{.status = {.code = -1}});
}

Gate::Gate(const std::string& path) {
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  // Open for reading too, it holds what is written until somebody comes.
  fifo_ = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

void Gate::let_through() const { EXPECT_EQ(::write(fifo_.get(), "\n", 1), 1); }

Launched::Launched(std::vector<std::string> arguments, Stage stage, std::vector<std::string> variables)
    : temporary_("", ::testing::TempDir()), mark_("LAUNCH_TEST_MARK=" + std::to_string(system_random())) {
  ChildSpec spec;
  spec.program = DOWNPOUR_PROGRAM;
  spec.arguments = std::move(arguments);
  spec.arguments.insert(spec.arguments.begin(), "downpour");
  Variables all(static_cast<const char* const*>(environ));
  all.set("TERM=xterm");
  all.set("TMPDIR=" + temporary_.path().string());
  all.set(variables);
  all.set(mark_);
  spec.variables = all.entries();
  std::vector<Fd> kept;
  stage == Stage::kPipes ? connect_pipes(spec, kept) : connect_terminal(spec, kept);
  child_ = Child::spawn(spec);
}

Launched::~Launched() {
  child_->signal(SIGKILL);
  all_gone();
  for (const pid_t pid : alive()) {
    ADD_FAILURE() << "process " << pid << " outlived the test";
    ::kill(pid, SIGKILL);
  }
  child_->reap();
}

void Launched::connect_pipes(ChildSpec& spec, std::vector<Fd>& kept) {
  auto [out_reading, out_writing] = make_pipe();
  auto [err_reading, err_writing] = make_pipe();
  out_pipe_ = std::move(out_reading);
  err_pipe_ = std::move(err_reading);
  spec.standard_input = kept.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
  spec.standard_output = kept.emplace_back(std::move(out_writing)).get();
  spec.standard_error = kept.emplace_back(std::move(err_writing)).get();
}

void Launched::connect_terminal(ChildSpec& spec, std::vector<Fd>& kept) {
  int ours = -1;
  int theirs = -1;
  winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  ::fcntl(ours, F_SETFD, FD_CLOEXEC);
  ::fcntl(theirs, F_SETFD, FD_CLOEXEC);
  out_pipe_ = Fd(ours);
  const int fd = kept.emplace_back(theirs).get();
  spec.standard_input = spec.standard_output = spec.standard_error = fd;
}

void Launched::signal(int number) const { ::kill(pid(), number); }
void Launched::signal_group(int number) const { child_->signal(number); }

void Launched::type(const std::string& text) const {
  EXPECT_EQ(::write(out_pipe_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

bool Launched::wait_readable(int timeout_ms) {
  pollfd waiting[2] = {{.fd = out_pipe_.get(), .events = POLLIN, .revents = 0},
                       {.fd = err_pipe_.get(), .events = POLLIN, .revents = 0}};
  if (::poll(waiting, 2, timeout_ms) <= 0) {
    return false;
  }
  if (waiting[0].revents != 0 && !append(out_pipe_.get(), out_)) {
    out_pipe_.reset();
  }
  if (waiting[1].revents != 0 && !append(err_pipe_.get(), err_)) {
    err_pipe_.reset();
  }
  return true;
}

bool Launched::read_some() {
  if (!out_pipe_ && !err_pipe_) {
    return false;
  }
  if (!wait_readable(kPatienceMs)) {
    ADD_FAILURE() << "no output for too long; out:\n" << out_ << "\nerr:\n" << err_;
    return false;
  }
  return true;
}

bool Launched::read_for(Duration time) {
  const TimePoint end = SteadyClock().now() + time;
  while (out_pipe_ || err_pipe_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock().now());
    if (left.count() <= 0 || !wait_readable(static_cast<int>(left.count()))) {
      return true;
    }
  }
  return false;
}

void Launched::wait_for(const std::string& text, int times) {
  while (occurrences(out_, text) + occurrences(err_, text) < times) {
    if (!read_some()) {
      FAIL() << "'" << text << "' never came " << times << " times; out:\n" << out_ << "\nerr:\n" << err_;
    }
  }
}

int Launched::wait() {
  while (!exit_code_ && read_some()) {
  }
  if (!exit_code_) {
    exit_code_ = -1;
    if (wait_for_end(pid())) {
      exit_code_ = child_->reap()->status.shell_code();
    } else {
      ADD_FAILURE() << "the launcher did not end";
    }
  }
  return *exit_code_;
}

std::vector<pid_t> Launched::alive() const {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  while (const dirent* item = ::readdir(folder.get())) {
    const pid_t pid = std::atoi(item->d_name);
    if (pid > 0 && read_file("/proc/" + std::to_string(pid) + "/environ").find(mark_) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

bool Launched::all_gone() const {
  for (int round = 0; round < 100; ++round) {
    const auto left = alive();
    if (left.empty()) {
      return true;
    }
    for (const pid_t pid : left) {
      if (!wait_for_end(pid)) {
        return false;
      }
    }
  }
  return false;
}

int Launched::working_process() const {
  std::ifstream children("/proc/" + std::to_string(pid()) + "/task/" + std::to_string(pid()) + "/children");
  int child = 0;
  children >> child;
  return child;
}

Finish launch(const std::vector<std::string>& arguments, const std::vector<std::string>& variables) {
  Launched launched(arguments, Stage::kPipes, variables);
  Finish finish{.exit_code = launched.wait(), .out = launched.out(), .err = launched.err()};
  EXPECT_TRUE(launched.all_gone()) << "processes were left behind";
  return finish;
}

}  // namespace downpour::launch
