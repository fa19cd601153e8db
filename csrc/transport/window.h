#pragma once

#include <cstdint>

#include "csrc/base/bytes.h"

namespace downpour::transport {

// Memory of this process that a peer's bulk bytes are received into: page-aligned, zero until written, touched on first use.
class Window {
 public:
  Window() = default;
  explicit Window(std::uint64_t size_bytes);  // Errors: CommError that says how many bytes were refused
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();
  MutableBytes bytes() const { return bytes_; }

 private:
  MutableBytes bytes_;
};

}  // namespace downpour::transport
