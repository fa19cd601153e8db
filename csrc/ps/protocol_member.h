#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "csrc/ps/protocol.h"

// The messages between a member of the job (worker or server) and its coordinator; encode and decode as in protocol.h.
namespace downpour::ps {

// What the first worker's program decides for the job; every other worker must offer the same.
struct Agreement {
  Schema schema;
  std::int64_t max_staleness = -1;    // updates; -1: no bound
  std::int64_t max_lead = -1;         // steps; -1: no bound
  std::int32_t warm_start_steps = 0;  // that worker 0 makes before the others begin
  std::int32_t warm_up_steps = 0;     // synchronous steps at the start
  std::int64_t samples = 0;           // data set size leased by Samples; 0: none
  std::int64_t lease_samples = 0;     // samples per lease
  std::int64_t epochs = 0;
  std::uint64_t seed = 0;
  std::uint8_t shuffle = 1;
  bool operator==(const Agreement&) const = default;
};

struct JoinJob {  // Hello::body of a member
  std::int64_t pid = 0;
};
struct Joined {                   // to a new member
  std::uint32_t incarnation = 0;  // of this life; it goes into the Hello of every data connection
  std::int32_t workers = 0;
  std::int32_t shards = 0;
  std::vector<std::string> servers;  // "host:port" by server index
};
struct Progress {  // a worker's beat, every heartbeat interval
  std::int64_t step = 0;
  std::int64_t samples = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: not reported
  double mean_staleness = 0;
  std::uint64_t pushed_bytes = 0, pulled_bytes = 0;
  std::uint64_t lost = 0;  // pushes declared lost
};
struct Tick {
  std::int64_t step = 0;  // steps done
};
struct MinimumClock {                    // follows Joined at once: where the clock of a new life starts
  std::int64_t clock = 0;                // steps done by the slowest live worker
  std::int32_t slowest = -1;             // the worker that the receiver waits for, for messages; -1: none
  std::int32_t server = -1;              // the server that it waits for where no worker holds it up; -1: none
  std::int64_t stalled_nanoseconds = 0;  // since anyone whom the receiver waits for last made progress
};
struct ServerReady {
  static constexpr std::size_t kMostRuns = 65536;  // a table that is longer is cut: what is missing is dealt again
  std::uint64_t schema = 0;                        // Schema::hash() its shards were made for
  LeaseTable leases;                               // those that all its shards have decided; without shards: all
};
struct ServerStatus {  // a server's beat
  std::int32_t server = 0;
  ShardCounters counters;       // summed over its shards
  std::uint64_t snapshots = 0;  // written in this life
  std::string snapshot_error;   // empty: the last one was written
  std::uint32_t shards = 0;     // made so far: before that there is nothing to count
  std::uint8_t last = 0;        // nothing changes any more; answered with a goodbye
};
struct JobCounters {  // in a snapshot's manifest
  std::uint64_t job = 0;
  ShardCounters counters;
};
struct AskLeases {
  std::int32_t count = 0;
};
struct LeasesDone {
  std::vector<std::uint64_t> leases;
};
struct Lease {
  std::uint64_t id = 0;  // > 0, unique in the job
  std::int32_t epoch = 0;
  std::int64_t begin = 0, end = 0;  // positions in the epoch's order; the order is epoch_order()
  bool operator==(const Lease&) const = default;
};
struct Leases {
  std::vector<Lease> leases;  // empty with `end`: all epochs are done
  std::uint8_t end = 0;
};
struct Fence {
  std::int32_t worker = 0;
  std::uint32_t below_incarnation = 0;  // lives below this one are over
};

void encode(const Agreement&, Writer& out);
void encode(const JoinJob&, Writer& out);
void encode(const Joined&, Writer& out);
void encode(const Progress&, Writer& out);
void encode(const Tick&, Writer& out);
void encode(const MinimumClock&, Writer& out);
void encode(const ServerReady&, Writer& out);
void encode(const ServerStatus&, Writer& out);
void encode(const JobCounters&, Writer& out);
void encode(const AskLeases&, Writer& out);
void encode(const LeasesDone&, Writer& out);
void encode(const Lease&, Writer& out);
void encode(const Leases&, Writer& out);
void encode(const Fence&, Writer& out);

}  // namespace downpour::ps
