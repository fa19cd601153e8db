#pragma once

#include <cstdint>

namespace downpour {

// Clang's ThreadSanitizer brings its own operator new.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DOWNPOUR_TEST_UNDER_TSAN
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define DOWNPOUR_TEST_UNDER_TSAN
#endif
#if defined(DOWNPOUR_TEST_UNDER_TSAN)
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
#endif

// How often this thread has called operator new so far; the test program that links this replaces it.
std::uint64_t allocations();

}  // namespace downpour
