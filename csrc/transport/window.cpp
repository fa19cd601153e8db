#include "csrc/transport/window.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::transport {

Window::Window(std::uint64_t size_bytes) {
  if (size_bytes == 0) {
    return;
  }
  void* memory = size_bytes <= std::numeric_limits<std::ptrdiff_t>::max()
                     ? ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : MAP_FAILED;
  DOWNPOUR_CHECK_AS(CommError, memory != MAP_FAILED, "a window of ", size_bytes,
                    " bytes was refused: ", std::strerror(errno));
  bytes_ = {static_cast<std::byte*>(memory), size_bytes};
  ::madvise(memory, size_bytes, MADV_HUGEPAGE);  // fewer first touches; no matter when the system does not
}

Window::Window(Window&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Window::~Window() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

}  // namespace downpour::transport
