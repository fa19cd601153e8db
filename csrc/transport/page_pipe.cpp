#include "csrc/transport/page_pipe.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "csrc/base/system_call.h"

namespace downpour::transport {
namespace {

// All pipes of an ordinary user together may hold 64 MB by default: 256 connections get theirs.
constexpr int kPipeBytes = 256 * 1024;

// splice(2) has no MSG_NOSIGNAL: a socket whose peer is gone sends this thread SIGPIPE, which would end a program that does
// not ignore it, also where the call has taken some bytes before. Held back while this lives, and taken away if it came and
// was not there before.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&sigpipe_);
    ::sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    const int error = errno;
    if (!was_pending_) {
      const timespec at_once{};
      uninterrupted([&] { return ::sigtimedwait(&sigpipe_, nullptr, &at_once); });
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace

bool PagePipe::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return false;
  }
  out_ = Fd(ends[0]);
  in_ = Fd(ends[1]);
  // A few pages at a time would cost more than a copy.
  return ::fcntl(in_.get(), F_SETPIPE_SZ, kPipeBytes) >= kPipeBytes;
}

bool PagePipe::fill(Bytes bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};  // only read
  const ssize_t taken = uninterrupted([&] { return ::vmsplice(in_.get(), &part, 1, SPLICE_F_NONBLOCK); });
  piped_bytes_ = taken > 0 ? static_cast<std::size_t>(taken) : 0;
  return taken > 0;
}

ssize_t PagePipe::give_up() {
  in_.reset();
  out_.reset();
  piped_bytes_ = 0;
  is_usable_ = false;
  errno = ENOSYS;
  return -1;
}

ssize_t PagePipe::send(int socket, Bytes bytes) {
  if (!is_usable_ || (!in_ && !open()) || (is_empty() && !fill(bytes))) {
    return give_up();
  }
  const NoSigpipe quiet;
  const unsigned more = piped_bytes_ < bytes.size() ? SPLICE_F_MORE : 0;
  const ssize_t sent = ::splice(out_.get(), nullptr, socket, nullptr, piped_bytes_, SPLICE_F_NONBLOCK | more);
  if (sent < 0 && (errno == ENOSYS || errno == EPERM || errno == EINVAL)) {
    return give_up();
  }
  piped_bytes_ -= sent > 0 ? static_cast<std::size_t>(sent) : 0;
  return sent;
}

}  // namespace downpour::transport
