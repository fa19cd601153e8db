#include "csrc/transport/admission.h"

#include <exception>
#include <new>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::transport {
namespace {

Admission refused(std::string reason) {
  Admission admission;
  admission.reason = std::move(reason);
  return admission;
}

std::string version_mismatch(const Hello& hello) {
  return concat("protocol version mismatch: the listener speaks version ", kProtocolVersion, " (build ", kVersion,
                "), the newcomer version ", hello.protocol, " (build ", hello.build,
                "); run the same release everywhere");
}

}  // namespace

std::string newcomer(const Hello& hello, Medium medium) {
  return concat(name(hello.role), " ", hello.rank, " (", name(medium), ")");
}

Admission decide(Acceptor& acceptor, const Hello& hello, Medium medium) {
  if (hello.protocol != kProtocolVersion) {
    return refused(version_mismatch(hello));
  }
  try {
    Admission admission = acceptor.admit(hello, medium);
    DOWNPOUR_INTERNAL_ASSERT(!admission.accepted || admission.receiver != nullptr, "admitted without a receiver");
    encode(admission.welcome);  // too large a body must not surface once the peer is half admitted
    return admission;
  } catch (const std::bad_alloc&) {
    return refused(concat(kLaterPrefix, "the listener has no memory for another connection"));
  } catch (const std::exception& error) {
    return refused(concat("the listener cannot admit anyone: ", error.what()));
  }
}

Window window_of(Admission& admission) {
  try {
    return Window(admission.welcome.to_acceptor_window_bytes);
  } catch (const CommError& error) {
    admission = refused(concat(kLaterPrefix, "the listener has no memory for the connection: ", error.what()));
    return {};
  }
}

}  // namespace downpour::transport
