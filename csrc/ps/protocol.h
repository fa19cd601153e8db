#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/ps/schema.h"
#include "csrc/ps/shard.h"
#include "csrc/ps/verdict.h"
#include "csrc/transport/frame.h"

// The messages between a worker and a shard; protocol_member.h has those between a member of the job and its coordinator.
// All decode_ functions: Errors: ProtocolError; counts are checked against the bytes before anything is allocated.
namespace downpour::ps {

enum class MessageType : std::uint16_t {
  // worker -> shard
  kResume = transport::kFirstUserType,  // from which sequence the worker goes on; declares what is lost
  kInitialise,                          // bulk: initial values, behind the slots; the last one says so
  kPush,                                // bulk: one fragment of a gradient, at its place in a slot
  kPull,                                // asks for one consistent version, written into the worker's window
  kSave,  // no body: asks for a snapshot of what is decided; answered by kDurable or kNotSaved
  // shard -> worker
  kAck,
  kValues,       // bulk: one fragment of the answer to a pull
  kDurable,      // a snapshot covers this worker's pushes below a sequence
  kInitialised,  // no body; to every worker, when the first offer of values is complete
  kNotSaved,     // Reason: no snapshot could be written
  kState,        // the first message on every connection: where the shard stands
  // member -> coordinator
  kOfferSchema = 128,  // Agreement
  kBeat,               // Progress
  kTick,               // Tick
  kAskLeases,          // AskLeases
  kLeasesDone,         // LeasesDone
  kFinish,             // no body
  kServerReady,        // ServerReady
  kServerStatus,       // ServerStatus
  // coordinator -> member
  kJoined = 192,   // Joined
  kSchema,         // to servers: Agreement, make your shards; to workers: no body, agreed
  kSchemaRefused,  // Reason
  kMinimumClock,   // MinimumClock
  kLeases,         // Leases
  kFinished,       // no body
  kFence,          // Fence
  kAbort,          // Reason
  kAskDecided,     // no body, to a server: it says ServerReady again, with what it has decided by now
};

// How the reason begins with which a shard refuses a life that is over.
constexpr std::string_view kFencedPrefix = "fenced: ";

struct JoinShard {  // Hello::body
  std::int32_t shard = 0;
  std::uint32_t slots = 4;    // wanted: pushes that the worker would keep for a replay
  std::uint64_t attempt = 0;  // of this process to connect to this shard, growing: the newest one is the live one
};
struct ShardWelcome {                // Welcome::body; only what never changes: another thread than the shard's answers
  std::uint32_t slots = 0;           // granted; the worker's window is (slots + 1) * buffer_bytes: the last one
                                     // takes initial values, since slots may hold pushes that are to be replayed
  std::uint64_t buffer_bytes = 0;    // ShardLayout::buffer_bytes, for the worker to compare
  std::uint8_t keeps_snapshots = 0;  // 0: pushes need not be kept beyond their acknowledgement
};
struct ShardState {  // once no older connection of this worker can change it any more
  Version version;
  std::uint64_t next_sequence = 0;  // of this worker
  std::uint8_t initialised = 0;
};
struct Resume {
  // The next new push will carry this one: pushes from the shard's next sequence up to here are lost. What has arrived of an
  // unfinished push is forgotten.
  std::uint64_t sequence = 0;
};
struct Initialise {
  std::uint8_t last = 0;
  std::vector<double> accumulators;  // per group; with the last fragment
};
// Bulk at slot * buffer_bytes + the fragment's place in the buffer. Fragments of one slice come in ascending order; a
// fragment holds no byte of an absent slice. The header comes with the last fragment (whose bulk may be empty). Of a push that
// the shard has decided before, the last fragment alone will do.
struct PushFragment {
  std::uint64_t sequence = 0;
  std::uint32_t slot = 0;
  std::uint8_t last = 0;
  PushHeader header;  // meaningful when last; header.worker is not sent: the connection says it
};
struct Pull {
  std::uint64_t request = 0;
};
struct Ack {
  std::uint64_t sequence = 0;
  PushResult result;
};
struct Values {
  std::uint64_t request = 0;
  Version version;
  std::uint8_t last = 0;
};
struct Durable {
  std::uint64_t below = 0;
};

struct Reason {
  static constexpr std::size_t kMostBytes = 2048;  // more is cut off
  std::string text;
};

// encode/decode of each, named alike; encode writes into `out` so that the steady state reuses its memory.
void encode(const JoinShard&, Writer& out);
void encode(const ShardWelcome&, Writer& out);
void encode(const ShardState&, Writer& out);
void encode(const Resume&, Writer& out);
void encode(const Initialise&, Writer& out);
void encode(const PushFragment&, Writer& out);
void encode(const Pull&, Writer& out);
void encode(const Ack&, Writer& out);
void encode(const Values&, Writer& out);
void encode(const Durable&, Writer& out);
void encode(const Reason&, Writer& out);
// e.g. auto ack = decode<Ack>(message.body);  into-form for PushFragment: decode_into(body, fragment) reuses its vectors.
template <typename T>
T decode(Bytes body);
void decode_into(Bytes body, PushFragment& into);

// The longest body between a worker and a shard of that layout.
std::uint64_t largest_body_bytes(const Schema& schema, const ShardLayout& layout);

}  // namespace downpour::ps
