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

}  // namespace downpour::testing
