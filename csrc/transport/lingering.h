#pragma once

#include "csrc/base/fd.h"

namespace downpour::transport {

class Loop;

// Ends a stream socket so that the peer gets all that the kernel has taken: a socket closed while something of the peer's lies
// unread is reset, and what was on its way is lost. The loop keeps it, reading and dropping, until the peer's end or a second.
void linger(Loop& loop, Fd socket);

}  // namespace downpour::transport
