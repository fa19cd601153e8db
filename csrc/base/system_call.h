#pragma once

#include <cerrno>
#include <string>
#include <system_error>

namespace downpour {

// "No space left on device"
inline std::string system_reason(int error = errno) { return std::generic_category().message(error); }

// The result of a system call that is to be repeated when a signal interrupts it.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

}  // namespace downpour
