// Bodies of messages. The first byte says which message; what is accepted encodes to the same bytes again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "csrc/ps/protocol_member.h"

namespace {

using namespace downpour;
using namespace downpour::ps;

template <typename T>
void check_same(const T& message, Bytes body) {
  Writer out;
  encode(message, out);
  if (!std::equal(out.bytes().begin(), out.bytes().end(), body.begin(), body.end())) {
    std::abort();
  }
}

template <typename T>
void read_as(Bytes body) {
  check_same(decode<T>(body), body);
}

void read_as_push(Bytes body) {
  PushFragment fragment;
  decode_into(body, fragment);
  check_same(fragment, body);
}

constexpr void (*kReaders[])(Bytes) = {
    read_as_push,         read_as<JoinShard>,    read_as<ShardWelcome>, read_as<ShardState>,
    read_as<Resume>,      read_as<Initialise>,   read_as<Pull>,         read_as<Ack>,
    read_as<Values>,      read_as<Durable>,      read_as<Agreement>,    read_as<JoinJob>,
    read_as<Joined>,      read_as<Progress>,     read_as<Tick>,         read_as<MinimumClock>,
    read_as<ServerReady>, read_as<ServerStatus>, read_as<AskLeases>,    read_as<LeasesDone>,
    read_as<Lease>,       read_as<Leases>,       read_as<Reason>,       read_as<downpour::ps::Fence>,
    read_as<JobCounters>,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(bytes, size));
  if (input.empty()) {
    return 0;
  }
  try {
    kReaders[bytes[0] % std::size(kReaders)](input.subspan(1));
  } catch (const ProtocolError&) {
  }
  return 0;
}
