#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "csrc/transport/frame.h"

namespace downpour::transport {

// Frames on their way into a stream: headers and bodies copied into one buffer, bulk bytes only pointed at. Keeps its memory,
// so that a steady stream allocates nothing. Pure. Threads: one.
class SendQueue {
 public:
  void push(const FrameHeader& header, Bytes body, Bytes bulk);
  // The first unsent bytes in order, for writev; returns how many of `out` are filled. Valid until the next push or consume.
  std::size_t gather(std::span<iovec> out) const;
  void consume(std::size_t sent_bytes);
  void keep_bulk();  // what it points at may change now
  bool empty() const { return first_ == entries_.size(); }
  void clear();

 private:
  struct Entry {
    std::size_t small_bytes = 0;  // of small_, in order
    Bytes bulk;                   // after them
    bool is_kept = false;         // bulk lies in kept_
  };
  void reclaim();

  std::vector<std::byte> small_;  // unsent headers and bodies from small_begin_ on
  std::size_t small_begin_ = 0;
  std::vector<Entry> entries_;  // unsent from first_ on
  std::size_t first_ = 0;
  std::vector<std::byte> kept_, next_kept_;  // only ever grow
};

}  // namespace downpour::transport
