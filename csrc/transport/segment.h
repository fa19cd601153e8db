#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "csrc/base/bytes.h"
#include "csrc/base/fd.h"
#include "csrc/transport/sealed_memory.h"

namespace downpour::transport {

// The memory that two processes share for one connection: two control rings and two windows in one sealed memfd.
// The accepting side creates it (so its size is its own decision) and passes the descriptor; the connecting side checks seals
// and size before it maps. Pages are touched on first use by whoever writes them.
// Layout: page 0 ring heads/tails and doorbell flags, each on a cache line of its own (first half: ring to acceptor); ring to
// acceptor; ring to connector; window to acceptor; window to connector; all page-aligned.
// The seals keep either side from shortening the memory, so no access to it raises SIGBUS, whatever the peer does.
// Threads: the object any; the memory by the rules of ring.h.
class Segment {
 public:
  struct Sizes {
    std::uint32_t ring_bytes = 64 * 1024;  // each ring, a power of two, at least 64
    std::uint64_t to_acceptor_window_bytes = 0;
    std::uint64_t to_connector_window_bytes = 0;
  };
  // Errors: Error for sizes that make no segment; CommError (memfd or mapping refused: says how many bytes).
  static std::shared_ptr<Segment> create(const Sizes& sizes);
  // Errors: ProtocolError when the descriptor is no memfd sealed against shrinking and growing, or has another size;
  // CommError when it cannot be mapped.
  static std::shared_ptr<Segment> map(Fd memory, const Sizes& expected);

  int fd() const;
  const Sizes& sizes() const;
  MutableBytes control_to_acceptor();
  MutableBytes control_to_connector();
  MutableBytes ring_to_acceptor();
  MutableBytes ring_to_connector();
  MutableBytes window_to_acceptor();
  MutableBytes window_to_connector();

 private:
  struct Layout {
    std::uint64_t ring_to_connector = 0;  // the ring to the acceptor starts after page 0
    std::uint64_t window_to_acceptor = 0;
    std::uint64_t window_to_connector = 0;
    std::uint64_t total = 0;
  };
  Segment(SealedMemory memory, const Sizes& sizes, const Layout& layout);
  static std::optional<Layout> lay_out(const Sizes& sizes);  // nullopt: no power of two, or more than an address holds

  SealedMemory memory_;
  Sizes sizes_;
  Layout layout_;
};

}  // namespace downpour::transport
