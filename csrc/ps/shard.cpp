#include "csrc/ps/shard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace downpour::ps {
namespace {

constexpr std::int64_t kMaxStep = std::int64_t{1} << 62;

void check_layout(const Schema& schema, const ShardLayout& layout) {
  for (const Slice& slice : layout.slices) {
    DOWNPOUR_CHECK(slice.parameter < schema.parameters.size() && slice.group < schema.groups,
                   "shard: a slice of parameter ", slice.parameter, " in group ", slice.group, ", the schema has ",
                   schema.parameters.size(), " parameters in ", schema.groups, " groups");
    DOWNPOUR_CHECK(
        slice.count > 0 && slice.offset_bytes >= 0 && slice.size_bytes() <= layout.buffer_bytes - slice.offset_bytes,
        "shard: a slice of ", slice.count, " elements at byte ", slice.offset_bytes, " of a buffer of ",
        layout.buffer_bytes, " bytes");
  }
}

template <typename T>
void fill_slice(AlignedBytes& buffer, const Slice& slice, double value) {
  auto* const begin = reinterpret_cast<T*>(buffer.data() + slice.offset_bytes);
  std::fill(begin, begin + slice.count, static_cast<T>(value));
}

void check_size(std::string_view what, std::size_t found, std::size_t expected) {
  DOWNPOUR_CHECK(found == expected, "shard: expected ", expected, " ", what, ", found ", found);
}

}  // namespace

int staleness_bucket(std::uint64_t staleness) {
  if (staleness < 4) {
    return static_cast<int>(staleness);
  }
  // Two buckets for each power of two: its lower and its upper half.
  const int power = static_cast<int>(std::bit_width(staleness)) - 1;
  const int upper_half = static_cast<int>(staleness >> (power - 1) & 1);
  return std::min(4 + 2 * (power - 2) + upper_half, ShardCounters::kStalenessBuckets - 1);
}

std::string_view staleness_bucket_name(int bucket) {
  static constexpr std::array<std::string_view, ShardCounters::kStalenessBuckets> kNames{
      "0",     "1",     "2",     "3",     "4-5",   "6-7",    "8-11",    "12-15",
      "16-23", "24-31", "32-47", "48-63", "64-95", "96-127", "128-191", ">=192"};
  DOWNPOUR_CHECK(bucket >= 0 && bucket < ShardCounters::kStalenessBuckets, "staleness bucket ", bucket, " of ",
                 ShardCounters::kStalenessBuckets);
  return kNames[static_cast<std::size_t>(bucket)];
}

Shard::Shard(const Schema& schema, ShardLayout layout, std::optional<std::uint64_t> max_staleness)
    : rule_(schema.rule), groups_(schema.groups), layout_(std::move(layout)), max_staleness_(max_staleness) {
  check_layout(schema, layout_);
  state_ = zero_state(schema, layout_);
}

Shard::State Shard::zero_state(const Schema& schema, const ShardLayout& layout) {
  const auto size = static_cast<std::size_t>(layout.buffer_bytes);
  State state;
  state.values.resize(size);
  state.optimizer_state.assign(static_cast<std::size_t>(state_buffers(schema)), AlignedBytes(size));
  state.steps.resize(layout.slices.size());
  return state;
}

bool Shard::initialised() const { return state_.initialised; }

bool Shard::initialise(Bytes values, std::span<const double> initial_accumulator) {
  check_size("bytes of initial values", values.size(), state_.values.size());
  if (rule_ == RuleKind::kAdagrad) {
    check_size("initial accumulator values, one a group", initial_accumulator.size(), groups_);
  }
  if (state_.initialised) {
    return false;
  }
  for (const Slice& slice : layout_.slices) {
    const auto offset = static_cast<std::size_t>(slice.offset_bytes);
    std::memcpy(state_.values.data() + offset, values.data() + offset, static_cast<std::size_t>(slice.size_bytes()));
    if (rule_ == RuleKind::kAdagrad) {
      auto* const fill = slice.dtype == Dtype::kFloat64 ? fill_slice<double> : fill_slice<float>;
      fill(state_.optimizer_state[0], slice, initial_accumulator[slice.group]);
    }
  }
  state_.initialised = true;
  return true;
}

PushResult Shard::push(const PushHeader& header, Bytes gradient) {
  if (header.sequence < state_.verdicts.next_sequence(header.worker)) {
    return repeat(header);
  }
  check_push(header, gradient);
  PushResult result;
  const std::uint64_t version = state_.version.version;
  result.staleness = version - std::min(version, header.base.version);
  result.verdict = judge(header, result.staleness);
  // Before the rule runs: only these may allocate.
  state_.leases.record(header.lease);
  state_.verdicts.record(header.worker, header.sequence, result.verdict);
  if (result.verdict == Verdict::kApplied) {
    apply(header, gradient);
  }
  count(header, result);
  result.version = state_.version;
  return result;
}

void Shard::check_push(const PushHeader& header, Bytes gradient) const {
  const std::uint64_t next = state_.verdicts.next_sequence(header.worker);
  DOWNPOUR_CHECK(state_.initialised, "shard: push ", header.sequence, " of worker ", header.worker,
                 " before the initial values");
  DOWNPOUR_CHECK(header.worker >= 0 && header.worker < VerdictTable::kMaxWorkers, "shard: a push of worker ",
                 header.worker, ", expected 0 to ", VerdictTable::kMaxWorkers - 1);
  DOWNPOUR_CHECK(header.sequence == next && next <= VerdictTable::kMaxSequence, "shard: push ", header.sequence,
                 " of worker ", header.worker, " leaves a gap, expected push ", next);
  DOWNPOUR_CHECK(header.lease <= LeaseTable::kMaxLease, "shard: lease ", header.lease, " is above the limit ",
                 LeaseTable::kMaxLease);
  check_size("parameter groups", header.groups.size(), groups_);
  check_size("slices", header.present.size(), layout_.slices.size());
  check_size("bytes of gradient", gradient.size(), state_.values.size());
  for (const Hyper& hyper : header.groups) {
    check_hyper(rule_, static_cast<int>(state_.optimizer_state.size()), hyper);
  }
}

ShardCounters& ShardCounters::operator+=(const ShardCounters& other) {
  applied += other.applied;
  stale += other.stale;
  refused += other.refused;
  duplicates += other.duplicates;
  repeats += other.repeats;
  lost += other.lost;
  replayed += other.replayed;
  pushed_bytes += other.pushed_bytes;
  pulled_bytes += other.pulled_bytes;
  max_staleness_seen = std::max(max_staleness_seen, other.max_staleness_seen);
  for (std::size_t bucket = 0; bucket < staleness.size(); ++bucket) {
    staleness[bucket] += other.staleness[bucket];
  }
  last_gradient_norm = std::hypot(last_gradient_norm, other.last_gradient_norm);
  return *this;
}

PushResult Shard::repeat(const PushHeader& header) {
  ++counters_.repeats;
  const std::uint64_t age = state_.verdicts.next_sequence(header.worker) - header.sequence;
  const Verdict unknown = age > VerdictTable::kWindow ? Verdict::kApplied : Verdict::kStale;
  PushResult result;
  result.verdict = state_.verdicts.find(header.worker, header.sequence).value_or(unknown);
  result.repeated = true;
  result.version = state_.version;
  return result;
}

Verdict Shard::judge(const PushHeader& header, std::uint64_t staleness) const {
  const bool replayed = header.replayed.has_value();
  if (replayed && (*header.replayed == Verdict::kStale || *header.replayed == Verdict::kRefused)) {
    return *header.replayed;
  }
  if (state_.leases.decided(header.lease)) {
    return Verdict::kDuplicate;
  }
  if (!replayed && max_staleness_ && staleness > *max_staleness_ && !header.exempt_from_staleness) {
    return Verdict::kStale;
  }
  return header.check.finite ? Verdict::kApplied : Verdict::kRefused;
}

void Shard::apply(const PushHeader& header, Bytes gradient) {
  for (std::size_t i = 0; i < layout_.slices.size(); ++i) {
    if (!header.present[i]) {
      continue;
    }
    const Slice& slice = layout_.slices[i];
    std::array<void*, kMaxStateBuffers> buffers{};
    for (std::size_t k = 0; k < state_.optimizer_state.size(); ++k) {
      buffers[k] = state_.optimizer_state[k].data() + slice.offset_bytes;
    }
    apply_rule(rule_, header.groups[slice.group], slice.dtype, slice.count, ++state_.steps[i],
               state_.values.data() + slice.offset_bytes, gradient.data() + slice.offset_bytes, buffers);
  }
  ++state_.version.version;
}

void Shard::count(const PushHeader& header, const PushResult& result) {
  for (std::size_t i = 0; i < layout_.slices.size(); ++i) {
    counters_.pushed_bytes += header.present[i] ? static_cast<std::uint64_t>(layout_.slices[i].size_bytes()) : 0;
  }
  counters_.replayed += header.replayed || header.exempt_from_staleness ? 1 : 0;
  switch (result.verdict) {
    case Verdict::kApplied:
      ++counters_.applied;
      ++counters_.staleness[static_cast<std::size_t>(staleness_bucket(result.staleness))];
      counters_.max_staleness_seen = std::max(counters_.max_staleness_seen, result.staleness);
      counters_.last_gradient_norm = std::sqrt(header.check.squared_norm);
      break;
    case Verdict::kStale: ++counters_.stale; break;
    case Verdict::kRefused: ++counters_.refused; break;
    case Verdict::kDuplicate: ++counters_.duplicates; break;
  }
}

const ShardLayout& Shard::layout() const { return layout_; }
Bytes Shard::values() const { return state_.values; }
Version Shard::version() const { return state_.version; }
std::uint64_t Shard::next_sequence(int worker) const { return state_.verdicts.next_sequence(worker); }

std::uint64_t Shard::skip_to(int worker, std::uint64_t sequence) {
  const std::uint64_t lost = state_.verdicts.skip_to(worker, sequence);
  counters_.lost += lost;
  return lost;
}

const VerdictTable& Shard::verdicts() const { return state_.verdicts; }
const LeaseTable& Shard::leases() const { return state_.leases; }
const ShardCounters& Shard::counters() const { return counters_; }
ShardCounters& Shard::counters() { return counters_; }

void Shard::copy_state(State& into) const { into = state_; }

void Shard::restore(State state) {
  check_size("bytes of values", state.values.size(), state_.values.size());
  check_size("optimizer state buffers", state.optimizer_state.size(), state_.optimizer_state.size());
  for (const AlignedBytes& buffer : state.optimizer_state) {
    check_size("bytes of optimizer state", buffer.size(), state_.values.size());
  }
  check_size("step counts", state.steps.size(), state_.steps.size());
  for (const std::int64_t step : state.steps) {
    DOWNPOUR_CHECK(step >= 0 && step <= kMaxStep, "shard: a step count of ", step, ", expected 0 to ", kMaxStep);
  }
  state_ = std::move(state);
  ++state_.version.generation;
  counters_ = {};
}

}  // namespace downpour::ps
