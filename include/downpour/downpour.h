#pragma once
// Everything a training loop touches: optimizers over parameter servers, the samples they lease, and what they throw.

#include "csrc/base/error.h"  // CommError, TimeoutError
#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
