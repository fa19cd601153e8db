// `printer LINES WIDTH`: prints numbered lines on both channels as badly as it can, each in two writes with a yield between;
// then a last line without a newline.
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count < 0) {
      std::_Exit(1);
    }
    done += static_cast<std::size_t>(count);
  }
}

void print(int fd, int number, std::size_t width) {
  const std::string line =
      "line " + std::to_string(number) + " of rank " + std::getenv("RANK") + " " + std::string(width, '.') + " end\n";
  write_all(fd, line.substr(0, line.size() / 2));
  ::sched_yield();
  write_all(fd, line.substr(line.size() / 2));
}

}  // namespace

int main(int argc, char** argv) {
  const int lines = argc > 1 ? std::atoi(argv[1]) : 10;
  const auto width = static_cast<std::size_t>(argc > 2 ? std::atoi(argv[2]) : 10);
  for (int number = 0; number < lines; ++number) {
    print(STDOUT_FILENO, number, width);
    print(STDERR_FILENO, number, width);
  }
  write_all(STDOUT_FILENO, "last");
  return 0;
}
