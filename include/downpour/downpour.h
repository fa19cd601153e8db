#pragma once
// Everything a training loop touches: optimizers over parameter servers, the samples they lease, and what they throw.

#include "csrc/base/error.h"  // Error and CommError: TimeoutError, PeerLostError, ProtocolError, AuthError
#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
