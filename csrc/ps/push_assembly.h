#pragma once

#include <cstdint>
#include <vector>

#include "csrc/ps/partition.h"

namespace downpour::ps {

// One push of one worker while its fragments arrive: which bytes are there. [ps 4/7]
// Knows no connection and holds no bytes. Threads: one. Errors: ProtocolError from all of them; then only discard() is left.
class PushAssembly {
 public:
  explicit PushAssembly(const ShardLayout& layout);  // the layout outlives it

  bool is_open() const { return open_; }
  void begin(std::uint64_t sequence, std::uint32_t slot);
  // Refuses another push than the one that is open.
  void check_same(std::uint64_t sequence, std::uint32_t slot) const;
  // A fragment of `size` bytes lies at `offset` of the buffer. Each slice's bytes come in ascending order, none twice.
  void add(std::uint64_t offset, std::uint64_t size);
  // Demands all bytes of the slices that are present and none of the others; the push is closed then.
  void finish(const std::vector<bool>& present);
  void discard() { open_ = false; }

 private:
  bool open_ = false;
  std::uint64_t sequence_ = 0;
  std::uint32_t slot_ = 0;
  const ShardLayout& layout_;
  std::vector<std::int64_t> arrived_bytes_;  // per slice
};

}  // namespace downpour::ps
