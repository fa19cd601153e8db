#pragma once
// Everything a training loop touches: optimizers over parameter servers and the samples they lease.

#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
