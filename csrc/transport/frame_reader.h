#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <vector>

#include "csrc/transport/frame.h"

namespace downpour::transport {

// Cuts a stream of bytes into frames: headers and bodies into a buffer of its own, bulk bytes straight into the window. Keeps
// its memory, which grows only to what a checked header announces. Pure. Threads: one.
class FrameReader {
 public:
  FrameReader(const FrameLimits& limits, MutableBytes window);

  struct Frame {
    FrameHeader header;
    Bytes body;  // valid until the next call of next()
  };
  // The next whole frame, nullptr when more bytes are needed. Errors: ProtocolError; the reader is of no use afterwards.
  const Frame* next();

  // Where the next bytes of the stream go, in order, for readv; call next() until it gives nullptr before.
  struct Space {
    std::array<iovec, 2> parts{};
    int count = 0;
    std::size_t bytes = 0;
  };
  Space space();
  void filled(std::size_t bytes);
  bool is_mid_frame() const { return stage_ != Stage::kHeader || begin_ != end_; }
  bool is_mid_bulk() const { return stage_ == Stage::kBulk; }

 private:
  enum class Stage { kHeader, kBody, kBulk, kDone };

  std::size_t buffered() const { return end_ - begin_; }
  void drop_frame();
  bool read_header();
  bool read_body();
  bool read_bulk();
  void make_room(std::size_t bytes_from_begin);

  FrameLimits limits_;
  MutableBytes window_;
  std::vector<std::byte> buffer_;  // [begin_, end_) holds what was received and not yet dropped
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Stage stage_ = Stage::kHeader;
  Frame frame_;
  std::uint64_t bulk_done_ = 0;
};

}  // namespace downpour::transport
