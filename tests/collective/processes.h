#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/error.h"
#include "csrc/base/fd.h"
#include "csrc/base/system_call.h"

// Real processes that a test kills and stops: forked children of it, which must not have threads then. The test and each of them
// tell one another single characters.
namespace downpour::collective {

inline constexpr std::chrono::seconds kLongestTest{60};

// A line between two processes. Errors: CommError when the other end is gone, or says nothing for too long.
class Line {
 public:
  explicit Line(int socket) : socket_(socket) {}
  void say(char word) const {
    DOWNPOUR_CHECK_AS(CommError, ::send(socket_.get(), &word, 1, MSG_NOSIGNAL) == 1, "telling: ", system_reason());
  }
  char hear() const {
    char word = 0;
    pollfd watched{socket_.get(), POLLIN, 0};
    const int limit = static_cast<int>(std::chrono::milliseconds(kLongestTest).count());
    DOWNPOUR_CHECK_AS(CommError, uninterrupted([&] { return ::poll(&watched, 1, limit); }) == 1, "nothing was said");
    DOWNPOUR_CHECK_AS(CommError, ::recv(socket_.get(), &word, 1, 0) == 1, "the other end is gone");
    return word;
  }
  void expect(char word) const {
    const char found = hear();
    DOWNPOUR_CHECK(found == word, "expected '", word, "', found '", found, "'");
  }

 private:
  Fd socket_;
};

class Processes {
 public:
  // `part`: of process `index`, which ends well when it returns.
  Processes(int count, const std::function<void(int index, const Line& test)>& part) {
    for (int index = 0; index < count; ++index) {
      int ends[2];
      DOWNPOUR_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      const pid_t child = ::fork();
      if (child == 0) {
        lines_.clear();
        ::close(ends[0]);
        ::_exit(live(index, Line(ends[1]), part));
      }
      ::close(ends[1]);
      children_.push_back(child);
      lines_.emplace_back(ends[0]);
    }
  }
  ~Processes() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int count() const { return static_cast<int>(children_.size()); }
  const Line& with(int index) const { return lines_[static_cast<std::size_t>(index)]; }
  void signal(int index, int number) const { ::kill(children_[static_cast<std::size_t>(index)], number); }
  // All of them but `index`.
  void for_each_other(int index, const std::function<void(const Line& line)>& action) const {
    for (int other = 0; other < count(); ++other) {
      if (other != index) {
        action(with(other));
      }
    }
  }

 private:
  static int live(int index, const Line& test, const std::function<void(int index, const Line& test)>& part) {
    ::alarm(2 * kLongestTest.count());  // ends what hangs
    try {
      part(index, test);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", index, error.what());
      return 1;
    }
  }

  std::vector<pid_t> children_;
  std::vector<Line> lines_;
};

// A folder that is gone with the test.
class TestFolder {
 public:
  TestFolder() : path_((std::filesystem::temp_directory_path() / "downpour-test-XXXXXX").string()) {
    DOWNPOUR_CHECK(::mkdtemp(path_.data()) != nullptr, "mkdtemp: ", system_reason());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace downpour::collective
