#pragma once

#include <string>

#include "csrc/transport/connection.h"
#include "csrc/transport/window.h"

namespace downpour::transport {

// "worker 1 (tcp)": what the accepting side calls a newcomer.
std::string newcomer(const Hello& hello, Medium medium);

// The listener's share of an admission: the protocol version, then the acceptor; a reason in every refusal. An acceptor that
// throws has refused. Never throws.
Admission decide(Acceptor& acceptor, const Hello& hello, Medium medium);

// The memory for what an accepted newcomer may write. Where it is not to be had the admission becomes a refusal.
Window window_of(Admission& admission);

}  // namespace downpour::transport
