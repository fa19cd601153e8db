#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace downpour::testing {

// Two workers have both come to the meeting of that name when this returns: each end of a named pipe waits for the other. `first`
// is true in one of them.
inline void meet(const std::string& name, bool first) {
  const std::string path = std::string(::getenv("DOWNPOUR_RUN_FOLDER")) + "/" + name;
  ::mkfifo(path.c_str(), 0600);
  ::close(::open(path.c_str(), first ? O_RDONLY : O_WRONLY));
}

// Waits until somebody has written a byte into the FIFO `gate`.RANK.
inline void wait_at_gate(const std::string& gate) {
  const int fd = ::open((gate + "." + ::getenv("RANK")).c_str(), O_RDONLY);
  char byte = 0;
  [[maybe_unused]] const ssize_t count = ::read(fd, &byte, 1);
  ::close(fd);
}

}  // namespace downpour::testing
