#include "csrc/transport/connection.h"

namespace downpour::transport {

std::string_view name(Medium medium) {
  switch (medium) {
    case Medium::kInproc: return "inproc";
    case Medium::kSharedMemory: return "shm";
    case Medium::kTcp: return "tcp";
  }
  return "unknown medium";
}

}  // namespace downpour::transport
