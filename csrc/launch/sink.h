#pragma once

#include <string>
#include <string_view>

#include "csrc/base/fd.h"

namespace downpour::launch {

// A descriptor that takes all bytes or is given up. Threads: one. Blocks: until the reader has made room.
class Sink {
 public:
  Sink() = default;
  explicit Sink(int borrowed) : fd_(borrowed) {}
  explicit Sink(Fd owned) : fd_(owned.get()), owned_(std::move(owned)) {}

  // False when the reader is gone or the medium refuses; why() says what happened, further bytes are dropped silently.
  bool write(std::string_view bytes);
  bool open() const { return fd_ >= 0; }
  const std::string& why() const { return why_; }

 private:
  bool wait_for_room() const;

  int fd_ = -1;
  Fd owned_;
  std::string why_;
};

}  // namespace downpour::launch
