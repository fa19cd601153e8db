#pragma once

#include "csrc/base/error.h"

namespace downpour::ps {

// This life of the worker is over, e.g. because its process was stopped for too long: the coordinator has fenced it. A new one
// may begin in the same process (Member::rejoin, Client::set_incarnation).
class FencedError : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace downpour::ps
