#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/ps/fenced_error.h"
#include "csrc/ps/partition.h"
#include "csrc/ps/protocol.h"
#include "csrc/transport/connection.h"

namespace downpour::ps {

// How a client reaches a shard: over TCP or shared memory (connector.h), or inproc in tests.
class Connector {
 public:
  virtual ~Connector() = default;
  // As transport::connect_tcp: the receiver hears the rest. Errors: CommError when it cannot be tried now; AuthError and Error
  // when it never will.
  virtual std::unique_ptr<transport::Connection> connect(int shard, const transport::Hello& hello,
                                                         transport::Receiver& receiver,
                                                         const transport::ConnectOptions& options) = 0;
  // Lets the outside world advance until something was handled or the deadline passed (false).
  virtual bool run_once(TimePoint deadline, Duration spin) = 0;
  virtual TimePoint now() const = 0;
};

struct ClientOptions {
  std::uint64_t job = 0;
  int rank = 0;
  std::uint32_t incarnation = 0;
  // Over all shards: pushes are kept until a snapshot covers them, at least four of them.
  std::uint64_t replay_budget_bytes = 256 << 20;
  std::uint64_t fragment_bytes = 512 * 1024;  // a push over TCP travels in pieces of about this size
  Duration call_deadline = std::chrono::seconds(60);
  Duration spin = std::chrono::microseconds(50);  // of looking at the ring before sleep, while a reply is awaited
};

struct StepReport {                                                  // over all shards
  std::uint64_t applied = 0, stale = 0, refused = 0, duplicate = 0;  // shards by verdict
  double mean_staleness = 0;
};

struct ClientCounters {
  std::uint64_t pushes = 0, pulls = 0, pushed_bytes = 0, pulled_bytes = 0, reconnects = 0, replayed = 0, lost = 0;
};

// A worker's end of all shards: pushes gradients, pulls values, replays after a loss. Survives the death and the restart of a
// server (reconnects with back-off until the call's deadline) and a fence (set_incarnation).
// Threads: one call at a time (the caller's own lock); no threads of its own: progress happens inside calls.
// Blocks: every call at most call_deadline, not counting the time for which this whole process stood still.
// Errors: TimeoutError naming operation, rank, shard, peer, time waited; FencedError; ProtocolError when a server refuses this
// worker (another schema, another job). After any CommError the client may be used again: what was unsettled is still kept and
// replayed; a pull that was begun is not.
class Client {
 public:
  Client(const Schema& schema, int shard_count, Connector& connector, ClientOptions options);
  ~Client();  // closes; never blocks

  void open();  // connects to all shards

  // Offers initial values; only the first offer of a job counts, and of a client. False where every shard had values before. `values(parameter)`: its contiguous memory.
  bool initialise(const std::function<const void*(std::uint32_t parameter)>& values,
                  std::span<const double> accumulators);

  // ---- one push: [ps 2/7], [ps 3/7] --------------------------------------------------------------------------------
  void begin_push(std::uint64_t lease);
  // Copies the parameter's gradient into the slots and sends it as fragments fill; at most once per push and parameter, any
  // order. Shapes: numel elements of the schema's dtype, contiguous. The memory is free again when it returns. Never blocks.
  void add_gradient(std::uint32_t parameter, const void* gradient);
  // The parameters not added are absent. Returns when the push is on its way (over TCP: when the kernel has it), or a shard is
  // lost and will get it later; does not wait for the answer.
  void end_push(std::span<const Hyper> groups);
  void abandon_push();  // a push begun and not ended is forgotten on all shards
  // Waits until every shard has decided all pushes; returns what happened since the last settle().
  StepReport settle();
  int unsettled() const;  // pushes ended and not yet decided everywhere
  // settle(), and then waits until every shard has a snapshot of all pushes, so that no crash of a server needs this worker any
  // more. False where a shard cannot write one (it has said so in its log) or takes longer than call_deadline; no error.
  // True at once where the job keeps no snapshots.
  bool save();

  // ---- one pull: [ps 6/7] -------------------------------------------------------------------------------------------
  void begin_pull();  // ordered after the pushes before it: the values contain them
  // Hands out what arrives, piece by piece while the rest is on its way, until all is there: copy `count` elements from `source`
  // to the parameter's element `begin` on. All pieces of a shard are of one version; a shard that is lost meanwhile begins
  // again. Base version of later gradients = the version pulled.
  using Adopt = std::function<void(const Slice& slice, std::int64_t begin, std::int64_t count, const void* source)>;
  void finish_pull(const Adopt& adopt);
  bool pull_begun() const;
  // The next push holds a gradient of the values pulled last, even where other pulls come before it begins.
  void keep_base_version();

  // Leases whose push every shard has decided since the last call.
  std::vector<std::uint64_t> take_decided_leases();

  void set_incarnation(std::uint32_t incarnation);  // after a fence: reconnects, replays what is not decided
  void look();                                      // handles what has arrived, never blocks
  const ClientCounters& counters() const;
  const std::vector<ShardLayout>& layouts() const;
  std::string medium() const;  // "shm", "tcp", or a mixture, for messages

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace downpour::ps
