#pragma once

#include "csrc/launch/output.h"

namespace downpour::launch {

// While it lives, the log lines of the core and of the launcher go through spdlog to an Output, so that they appear between
// whole lines of the programs. One at a time. Threads: lines may come from any.
class Logging {
 public:
  explicit Logging(Output& output);
  ~Logging();
  Logging(const Logging&) = delete;
  Logging& operator=(const Logging&) = delete;
};

}  // namespace downpour::launch
