#include "tests/transport/allocations.h"

#include <cstdlib>
#include <new>

namespace {

[[maybe_unused]] thread_local std::uint64_t t_allocations = 0;

}  // namespace

#if !defined(DOWNPOUR_TEST_UNDER_TSAN)
void* operator new(std::size_t bytes) {
  ++t_allocations;
  void* memory = std::malloc(bytes != 0 ? bytes : 1);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace downpour::transport {

std::uint64_t allocations() { return t_allocations; }

}  // namespace downpour::transport
