#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "csrc/transport/frame.h"

namespace downpour::transport {

// How bulk bytes go: copied by a call that gathers parts, or page by page (PagePipe).
enum class Way { kCopied, kByPage };

// Frames on their way into a stream: headers and bodies copied into one buffer, bulk bytes only pointed at. Keeps its memory,
// so that a steady stream allocates nothing. Pure. Threads: one.
class SendQueue {
 public:
  void push(const FrameHeader& header, Bytes body, Bytes bulk, Way way);
  // The first unsent bytes in order, up to those that leave by page, for writev. Valid until the next push or consume.
  struct Gathered {
    std::size_t parts = 0;  // of `out`
    bool pages_follow = false;
  };
  Gathered gather(std::span<iovec> out) const;
  Bytes next_pages() const;  // those that come first now and leave by page
  void forget_pages();       // none leaves by page any more
  void consume(std::size_t sent_bytes);
  void keep_bulk();  // what it points at may change now
  bool empty() const { return first_ == entries_.size(); }
  void clear();

 private:
  struct Entry {
    std::size_t small_bytes = 0;  // of small_, in order
    Bytes bulk;                   // after them
    Way way = Way::kCopied;
    bool is_kept = false;  // bulk lies in kept_
  };
  void reclaim();

  std::vector<std::byte> small_;  // unsent headers and bodies from small_begin_ on
  std::size_t small_begin_ = 0;
  std::vector<Entry> entries_;  // unsent from first_ on
  std::size_t first_ = 0;
  std::vector<std::byte> kept_, next_kept_;  // only ever grow
};

}  // namespace downpour::transport
