#pragma once

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

// The errors of the core and the macros that raise them; the equals of LibTorch's TORCH_CHECK family for code that
// does not know LibTorch.
namespace downpour {

// The caller's mistake, raised before any effect: nothing has changed when it is thrown. Also: the job was ended, and why.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Our own broken invariant; a report of it is a bug in Downpour.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The outside world failed: a peer, the network, a deadline. The object that raised it says in its header whether it
// may be used again.
class CommError : public Error {
 public:
  using Error::Error;
};

// The peer's process ended or its connection closed.
class PeerLostError : public CommError {
 public:
  using CommError::CommError;
};

// A deadline passed; the message names the operation, the peer and the time waited.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

// The peer speaks another protocol version, belongs to another job, has another schema, or sent bytes that are no frame.
class ProtocolError : public CommError {
 public:
  using CommError::CommError;
};

// A connection that may not be made without a key: off loopback, and nobody has said `insecure`.
class AuthError : public CommError {
 public:
  using CommError::CommError;
};

// What it says; "" for none.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
  return "";
}

// "a", 1, 2.5 -> "a12.5": the message parts of the macros below.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace downpour

// DOWNPOUR_CHECK(size > 0, "shard ", index, ": expected a size above 0, found ", size, "; pass ...")
#define DOWNPOUR_CHECK(condition, ...)                          \
  do {                                                          \
    if (!(condition)) [[unlikely]] {                            \
      throw ::downpour::Error(::downpour::concat(__VA_ARGS__)); \
    }                                                           \
  } while (false)

#define DOWNPOUR_CHECK_AS(ErrorType, condition, ...)    \
  do {                                                  \
    if (!(condition)) [[unlikely]] {                    \
      throw ErrorType(::downpour::concat(__VA_ARGS__)); \
    }                                                   \
  } while (false)

#define DOWNPOUR_INTERNAL_ASSERT(condition, ...)                                                                     \
  do {                                                                                                               \
    if (!(condition)) [[unlikely]] {                                                                                 \
      throw ::downpour::InternalError(::downpour::concat("internal assert failed: " #condition " at " __FILE__, ":", \
                                                         __LINE__, " " __VA_OPT__(, ) __VA_ARGS__));                 \
    }                                                                                                                \
  } while (false)
