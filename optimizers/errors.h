#pragma once

#include <c10/util/Exception.h>

#include "csrc/base/error.h"

namespace downpour::optimizers {

// Runs `call`; the core's Error for a caller's mistake leaves as c10::Error, as LibTorch's own would. CommError stays what it is.
template <typename Call>
auto with_torch_errors(Call&& call) {
  try {
    return call();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace downpour::optimizers
