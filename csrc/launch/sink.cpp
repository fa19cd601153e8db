#include "csrc/launch/sink.h"

#include <poll.h>

#include <cerrno>
#include <cstring>

namespace downpour::launch {

// The descriptor may be shared with a shell that made it non-blocking.
bool Sink::wait_for_room() const {
  pollfd waiting{.fd = fd_, .events = POLLOUT, .revents = 0};
  return ::poll(&waiting, 1, -1) >= 0 || errno == EINTR;
}

bool Sink::write(std::string_view bytes) {
  while (open() && !bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR && !(errno == EAGAIN && wait_for_room())) {
      why_ = std::strerror(errno);
      fd_ = -1;
    }
  }
  return open();
}

}  // namespace downpour::launch
