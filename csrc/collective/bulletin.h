#pragma once

#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/base/clock.h"

namespace downpour::collective {

// Where the ranks of a group read what the others have pinned up, before they know each other: c10d's Store, or a table in tests.
// Threads: one at a time.
class Bulletin {
 public:
  virtual ~Bulletin() = default;
  virtual void put(const std::string& key, Bytes value) = 0;
  // Blocks: until somebody puts it, or the deadline. Errors: TimeoutError; CommError when the bulletin itself is lost.
  virtual std::vector<std::byte> get(const std::string& key, TimePoint deadline) = 0;
};

}  // namespace downpour::collective
