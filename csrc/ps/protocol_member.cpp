#include "csrc/ps/protocol_member.h"
#include "csrc/ps/protocol_fields.h"

namespace downpour::ps {

template <>
struct Fields<Agreement> {
  static constexpr std::string_view kName = "agreement";
  static auto of(auto& m) {
    return std::tie(m.schema, m.max_staleness, m.max_lead, m.warm_start_steps, m.warm_up_steps, m.samples,
                    m.lease_samples, m.epochs, m.seed, m.shuffle);
  }
};
template <>
struct Fields<JoinJob> {
  static constexpr std::string_view kName = "member's hello";
  static auto of(auto& m) { return std::tie(m.pid); }
};
template <>
struct Fields<Joined> {
  static constexpr std::string_view kName = "joined";
  static auto of(auto& m) { return std::tie(m.incarnation, m.workers, m.shards, m.servers); }
};
template <>
struct Fields<Progress> {
  static constexpr std::string_view kName = "beat";
  static auto of(auto& m) {
    return std::tie(m.step, m.samples, m.loss, m.mean_staleness, m.pushed_bytes, m.pulled_bytes, m.lost);
  }
};
template <>
struct Fields<Tick> {
  static constexpr std::string_view kName = "tick";
  static auto of(auto& m) { return std::tie(m.step); }
};
template <>
struct Fields<MinimumClock> {
  static constexpr std::string_view kName = "minimum clock";
  static auto of(auto& m) { return std::tie(m.clock, m.slowest, m.server, m.stalled_nanoseconds); }
};
template <>
struct Fields<ServerReady> {
  static constexpr std::string_view kName = "server ready";
  static auto of(auto& m) { return std::tie(m.schema, m.leases); }
};
template <>
struct Fields<ShardCounters> {
  static auto of(auto& m) {
    return std::tie(m.applied, m.stale, m.refused, m.duplicates, m.repeats, m.lost, m.replayed, m.pushed_bytes,
                    m.pulled_bytes, m.max_staleness_seen, m.staleness, m.last_gradient_norm);
  }
};
template <>
struct Fields<ServerStatus> {
  static constexpr std::string_view kName = "server status";
  static auto of(auto& m) { return std::tie(m.server, m.counters, m.snapshots, m.snapshot_error, m.shards, m.last); }
};
template <>
struct Fields<JobCounters> {
  static constexpr std::string_view kName = "counters of a job";
  static auto of(auto& m) { return std::tie(m.job, m.counters); }
};
template <>
struct Fields<AskLeases> {
  static constexpr std::string_view kName = "request for leases";
  static auto of(auto& m) { return std::tie(m.count); }
};
template <>
struct Fields<LeasesDone> {
  static constexpr std::string_view kName = "finished leases";
  static auto of(auto& m) { return std::tie(m.leases); }
};
template <>
struct Fields<Lease> {
  static constexpr std::string_view kName = "lease";
  static constexpr std::size_t kLeastBytes = 3 * sizeof(std::int64_t) + sizeof(std::int32_t);
  static auto of(auto& m) { return std::tie(m.id, m.epoch, m.begin, m.end); }
};
template <>
struct Fields<Leases> {
  static constexpr std::string_view kName = "leases";
  static auto of(auto& m) { return std::tie(m.leases, m.end); }
};
template <>
struct Fields<Reason> {
  static constexpr std::string_view kName = "reason";
  static auto of(auto& m) { return std::tie(m.text); }
};
template <>
struct Fields<Fence> {
  static constexpr std::string_view kName = "fence";
  static auto of(auto& m) { return std::tie(m.worker, m.below_incarnation); }
};

void encode(const Agreement& message, Writer& out) { put_field(out, message); }
void encode(const JoinJob& message, Writer& out) { put_field(out, message); }
void encode(const Joined& message, Writer& out) { put_field(out, message); }
void encode(const Progress& message, Writer& out) { put_field(out, message); }
void encode(const Tick& message, Writer& out) { put_field(out, message); }
void encode(const MinimumClock& message, Writer& out) { put_field(out, message); }
void encode(const ServerReady& message, Writer& out) { put_field(out, message); }
void encode(const ServerStatus& message, Writer& out) { put_field(out, message); }
void encode(const JobCounters& message, Writer& out) { put_field(out, message); }
void encode(const AskLeases& message, Writer& out) { put_field(out, message); }
void encode(const LeasesDone& message, Writer& out) { put_field(out, message); }
void encode(const Lease& message, Writer& out) { put_field(out, message); }
void encode(const Leases& message, Writer& out) { put_field(out, message); }
void encode(const Reason& message, Writer& out) { put_field(out, Reason{message.text.substr(0, Reason::kMostBytes)}); }
void encode(const Fence& message, Writer& out) { put_field(out, message); }

template Agreement decode<Agreement>(Bytes);
template JoinJob decode<JoinJob>(Bytes);
template Joined decode<Joined>(Bytes);
template Progress decode<Progress>(Bytes);
template Tick decode<Tick>(Bytes);
template MinimumClock decode<MinimumClock>(Bytes);
template ServerReady decode<ServerReady>(Bytes);
template ServerStatus decode<ServerStatus>(Bytes);
template JobCounters decode<JobCounters>(Bytes);
template AskLeases decode<AskLeases>(Bytes);
template LeasesDone decode<LeasesDone>(Bytes);
template Lease decode<Lease>(Bytes);
template Leases decode<Leases>(Bytes);
template Reason decode<Reason>(Bytes);
template Fence decode<Fence>(Bytes);

}  // namespace downpour::ps
