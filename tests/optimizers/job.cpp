#include "tests/optimizers/job.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

extern char** environ;

namespace downpour::testing {
namespace {

constexpr int kPatience_ms = 120'000;

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

pid_t parent_of(pid_t process) {
  const std::string stat = contents("/proc/" + std::to_string(process) + "/stat");
  const auto after_name = stat.rfind(')');
  return after_name == std::string::npos ? -1 : static_cast<pid_t>(std::atoi(stat.c_str() + after_name + 4));
}

// Our end, the launcher's end.
std::pair<int, int> open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2");
  }
  return {ends[0], ends[1]};
}

std::pair<int, int> open_terminal() {
  int ours = -1;
  int theirs = -1;
  winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
  if (::openpty(&ours, &theirs, nullptr, nullptr, &size) != 0) {
    throw std::runtime_error("openpty");
  }
  ::fcntl(ours, F_SETFD, FD_CLOEXEC);
  ::fcntl(theirs, F_SETFD, FD_CLOEXEC);
  ::setenv("TERM", "xterm", 1);
  return {ours, theirs};
}

}  // namespace

JobRun::JobRun(const std::vector<std::string>& options, const std::string& program,
               const std::vector<std::string>& arguments, Screen screen) {
  std::vector<std::string> command = {DOWNPOUR_PROGRAM, "run"};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--", DOWNPOUR_TEST_BIN "/" + program});
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : command) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  const auto [ours, theirs] = screen == Screen::kTerminal ? open_terminal() : open_pipe();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs, 1);
  ::posix_spawn_file_actions_adddup2(&actions, theirs, 2);
  const int error = ::posix_spawn(&pid_, DOWNPOUR_PROGRAM, &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(theirs);
  pipe_ = ours;
  if (error != 0) {
    throw std::runtime_error("cannot start " DOWNPOUR_PROGRAM);
  }
}

JobRun::~JobRun() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);  // its own second process ends what it has started
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pipe_);
}

bool JobRun::read_some() {
  pollfd waiting{pipe_, POLLIN, 0};
  std::array<char, 4096> chunk{};
  if (::poll(&waiting, 1, kPatience_ms) <= 0) {
    output_ += "\n(out of patience)\n";
    return false;
  }
  const ssize_t count = ::read(pipe_, chunk.data(), chunk.size());
  if (count <= 0) {
    return false;
  }
  output_.append(chunk.data(), static_cast<std::size_t>(count));
  return true;
}

void JobRun::signal(int number) const { ::kill(pid_, number); }

bool JobRun::wait_for(const std::string& text) {
  while (output_.find(text) == std::string::npos) {
    if (!read_some()) {
      return false;
    }
  }
  return true;
}

pid_t JobRun::a_server() const {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto process = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (process > 0 && parent_of(parent_of(process)) == pid_ &&
        contents(entry.path() / "cmdline").find(std::string("server") + '\0') != std::string::npos) {
      return process;
    }
  }
  return -1;
}

int JobRun::wait() {
  while (read_some()) {
  }
  int status = 0;
  const bool ended =
      ::waitpid(pid_, &status, output_.find("(out of patience)") == std::string::npos ? 0 : WNOHANG) == pid_;
  if (!ended) {
    return -1;
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<std::string> JobRun::after(const std::string& word) const {
  std::vector<std::string> found;
  std::istringstream lines(output_);
  for (std::string line; std::getline(lines, line);) {
    if (const auto at = line.find(word); at != std::string::npos) {
      found.push_back(line.substr(at + word.size()));
    }
  }
  return found;
}

}  // namespace downpour::testing
