#include "csrc/transport/lingering.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/transport/loop.h"

namespace downpour::transport {
namespace {

constexpr Duration kLongestLinger = std::chrono::seconds(1);
constexpr int kReadsPerTurn = 16;

// Reads and drops; true when nothing more can come.
bool drain(int socket) {
  std::array<std::byte, 16 * 1024> dropped;
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    const ssize_t got = ::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got <= 0) {
      return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }
  }
  return false;
}

}  // namespace

void linger(Loop& loop, Fd socket) {
  ::shutdown(socket.get(), SHUT_WR);
  // Owned by the two callbacks together: whichever comes first ends both.
  const auto kept = std::make_shared<Fd>(std::move(socket));
  const Loop::TimerId timer = loop.call_at(loop.now() + kLongestLinger, [&loop, kept] { loop.unwatch(kept->get()); });
  try {
    loop.watch(kept->get(), EPOLLIN, [&loop, kept, timer](std::uint32_t) {
      if (drain(kept->get())) {
        loop.cancel(timer);
        loop.unwatch(kept->get());
      }
    });
  } catch (const CommError&) {  // no room in the kernel; we may be in a destructor
    loop.cancel(timer);
  }
}

}  // namespace downpour::transport
