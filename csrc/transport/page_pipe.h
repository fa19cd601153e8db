#pragma once

#include <sys/types.h>

#include <cstddef>

#include "csrc/base/bytes.h"
#include "csrc/base/fd.h"

namespace downpour::transport {

// Gives a TCP socket the pages in which bytes lie, where send(2) would copy them: vmsplice(2) into a pipe, splice(2) out of
// it. On loopback the peer copies from these pages, else the network card reads them there. So the bytes must stay as they
// are, or be unmapped, until the peer has dealt with them. Threads: one. Owns: the pipe, opened by the first send().
class PagePipe {
 public:
  // As send(2) with MSG_NOSIGNAL to a non-blocking socket: how many bytes of `bytes`, from the first on, it has taken, or -1
  // and errno; what follows them must come in the next call. ENOSYS: it cannot be done here, from now on; nothing was taken.
  ssize_t send(int socket, Bytes bytes);
  bool is_usable() const { return is_usable_; }
  bool is_empty() const { return piped_bytes_ == 0; }  // nothing waits in the pipe

 private:
  bool open();
  bool fill(Bytes bytes);
  ssize_t give_up();

  Fd in_, out_;
  std::size_t piped_bytes_ = 0;
  bool is_usable_ = true;
};

}  // namespace downpour::transport
