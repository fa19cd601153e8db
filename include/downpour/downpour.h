#pragma once
// Everything a training loop touches: optimizers over parameter servers, the samples they lease, process groups, data-parallel
// gradients, and what they throw.

#include "backends/distributed_data_parallel.h"
#include "backends/init_process_group.h"
#include "csrc/base/error.h"  // Error and CommError: TimeoutError, PeerLostError, ProtocolError, AuthError
#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
