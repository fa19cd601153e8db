#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "csrc/ps/protocol_member.h"

// What Membership decides is to be done, in this order; the coordinator does it.
namespace downpour::ps {

struct Target {
  enum class Kind : std::uint8_t { kWorker, kServer } kind = Kind::kWorker;
  int index = 0;
  auto operator<=>(const Target&) const = default;
};
inline Target worker_target(int index) { return {Target::Kind::kWorker, index}; }
inline Target server_target(int index) { return {Target::Kind::kServer, index}; }
std::string text(const Target& target);  // "worker 1"

// One thing to do, or to send.
struct SendJoined {
  Target to;
  Joined joined;
};  // Joined::servers is the coordinator's to fill in
struct SendSchema {
  Target to;
};  // servers: make your shards; workers: agreed
struct SendSchemaRefused {
  Target to;
  std::string reason;
};
struct SendFence {
  Target to;
  Fence fence;
};  // also to the worker itself, before it is disconnected
struct SendMinimumClock {
  Target to;
  MinimumClock minimum;
};
struct SendLeases {
  Target to;
  Leases leases;
};
struct SendFinished {
  Target to;
};  // servers: the job is over, end
struct AskDecided {
  int server;
};  // which leases it has decided: it answers with ServerReady
struct Disconnect {
  Target to;
  std::string reason;
};
struct ServerSilent {
  int server;
};  // the launcher kills and restarts it
struct Note {
  std::string text;
};  // for the log
using Action = std::variant<SendJoined, SendSchema, SendSchemaRefused, SendFence, SendMinimumClock, SendLeases,
                            SendFinished, AskDecided, Disconnect, ServerSilent, Note>;
using Actions = std::vector<Action>;

}  // namespace downpour::ps
