#pragma once

#include <cstdint>

#include "csrc/base/bytes.h"

namespace downpour {

// XXH3, 64 bits: guards against accidents, not against people.
std::uint64_t checksum(Bytes bytes);

// The same over parts that arrive one after another. Threads: one.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(Bytes bytes);
  std::uint64_t value() const;

 private:
  void* state_;
};

}  // namespace downpour
