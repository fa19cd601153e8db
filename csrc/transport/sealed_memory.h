#pragma once

#include <cstdint>
#include <utility>

#include "csrc/base/bytes.h"
#include "csrc/base/fd.h"

namespace downpour::transport {

// Memory that several processes map: a memfd sealed against shrinking and growing, so that no access to it raises SIGBUS, whatever
// another process does. Pages are touched on first use by whoever writes them.
// Threads: the object one at a time; the memory by the rules of the layer above. Owns: descriptor and mapping.
class SealedMemory {
 public:
  SealedMemory() = default;
  // Errors: CommError (memfd or mapping refused: says how many bytes).
  static SealedMemory create(std::uint64_t bytes);
  // Errors: ProtocolError when the descriptor is no memfd sealed against shrinking and growing, or has another size; CommError when
  // it cannot be mapped.
  static SealedMemory map(Fd memory, std::uint64_t expected_bytes);
  SealedMemory(SealedMemory&& other) noexcept
      : memory_(std::move(other.memory_)), mapping_(std::exchange(other.mapping_, {})) {}
  SealedMemory& operator=(SealedMemory&& other) noexcept;
  ~SealedMemory() { unmap(); }

  MutableBytes bytes() const { return mapping_; }
  int fd() const { return memory_.get(); }

  // From now on the same addresses hold this process's own memory with the content as it was: what others write later does not
  // reach it, and the other way round. Pointers stay valid, other threads may go on reading and writing meanwhile. Once.
  // Errors: CommError when the system has no memory for the copies; what was not copied yet still shows what others write.
  void keep_privately();

 private:
  SealedMemory(Fd memory, std::uint64_t bytes);
  void unmap();

  Fd memory_;
  MutableBytes mapping_;
};

}  // namespace downpour::transport
