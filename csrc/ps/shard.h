#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/aligned_bytes.h"
#include "csrc/base/bytes.h"
#include "csrc/ps/gradient_check.h"
#include "csrc/ps/partition.h"
#include "csrc/ps/update_rule.h"
#include "csrc/ps/verdict.h"

namespace downpour::ps {

// What a push says about itself; the gradient's bytes lie in a staging buffer of the shard's layout.
struct PushHeader {
  int worker = 0;
  std::uint64_t sequence = 0;
  Version base;                        // of its oldest gradient
  std::uint64_t lease = 0;             // 0: none
  std::vector<Hyper> groups;           // Schema::groups of them
  std::vector<bool> present;           // one per slice; absent gradients leave values and step counts alone
  std::optional<Verdict> replayed;     // set when a worker replays a push that already had a verdict
  bool exempt_from_staleness = false;  // a replayed push that was never acknowledged
  GradientCheck check;  // of the slices present, the norm without plain groups; found by the worker's copy
};

struct PushResult {
  Verdict verdict = Verdict::kApplied;
  bool repeated = false;        // the sequence had been decided before; nothing happened now
  Version version;              // after this push
  std::uint64_t staleness = 0;  // versions between base and admission
};

// Counters of the job; those of a shard that is restored in the same job go on where its snapshot was taken, so that what a crash
// undid is not counted, or once when it is replayed. The server counts pulled_bytes; all others grow in push() and skip_to().
struct ShardCounters {
  static constexpr int kStalenessBuckets = 16;  // 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, 16-23, ... see staleness_bucket()
  std::uint64_t applied = 0, stale = 0, refused = 0, duplicates = 0, repeats = 0, lost = 0, replayed = 0;
  std::uint64_t pushed_bytes = 0, pulled_bytes = 0;          // of the slices present, of decided pushes
  std::uint64_t max_staleness_seen = 0;                      // of applied pushes
  std::array<std::uint64_t, kStalenessBuckets> staleness{};  // of applied pushes
  double last_gradient_norm = 0;                             // of the last applied push

  ShardCounters& operator+=(const ShardCounters& other);  // of several shards: the largest staleness, the norm over all
};
int staleness_bucket(std::uint64_t staleness);
std::string_view staleness_bucket_name(int bucket);  // "0", "1", ..., "4-5", ..., ">=192"

// The parameters, optimizer state, version and tables of one shard, and the one function that changes them.
// Knows no clock, no socket, no lock. Threads: one owner at a time.
class Shard {
 public:
  // `max_staleness`: pushes whose staleness is larger are dropped (Verdict::kStale); nullopt: none are.
  // Errors: Error when the layout does not belong to the schema.
  Shard(const Schema& schema, ShardLayout layout, std::optional<std::uint64_t> max_staleness);

  bool initialised() const;
  // Copies the initial values in; only the first call of a job has an effect (returns false afterwards).
  // `initial_accumulator` per group is Adagrad's, ignored by the other rules. Shapes: values: layout().buffer_bytes.
  // Errors: Error when sizes do not fit: nothing has changed.
  bool initialise(Bytes values, std::span<const double> initial_accumulator);

  // [ps 4/7], [ps 5/7] Decides about one whole push and applies it. In this order:
  // - a sequence decided before is a repeat: its old verdict, nothing happens. Declared lost: kStale; left the window
  //   of verdicts: kApplied, as the worker has gone on long ago;
  // - a replayed push that was stale or refused stays it; an applied one is never stale. Of the pushes for one lease the first
  //   to come counts, also of replayed ones: an answer that never arrived may bring them in another order than before;
  // - lease decided: kDuplicate; staleness above the bound and not exempt: kStale;
  // - `check` not finite: kRefused, replayed or not;
  // - else the rule runs over each slice that is present, and the version grows by one.
  // Sequence and lease count as decided in every case. Staleness is version minus base version, 0 when the base version
  // (of an older generation) is larger. Allocates for a worker's first push and for leases out of order only.
  // Errors: Error before initialise(), for a sequence gap, a group count, a slice count, a buffer size,
  // hyper-parameters (check_hyper) that do not fit: nothing has changed.
  PushResult push(const PushHeader& header, Bytes gradient);

  const ShardLayout& layout() const;
  Bytes values() const;
  Version version() const;
  std::uint64_t next_sequence(int worker) const;
  std::uint64_t skip_to(int worker, std::uint64_t sequence);  // declares a loss; counted
  const VerdictTable& verdicts() const;
  const LeaseTable& leases() const;
  const ShardCounters& counters() const;
  ShardCounters& counters();

  // Everything a restart needs, as one consistent copy; see snapshot.h.
  struct State {
    Version version;
    bool initialised = false;
    AlignedBytes values;
    std::vector<AlignedBytes> optimizer_state;  // state_buffers(schema)
    std::vector<std::int64_t> steps;            // per slice
    VerdictTable verdicts;
    LeaseTable leases;
    bool operator==(const State&) const = default;
  };
  static State zero_state(const Schema& schema, const ShardLayout& layout);  // before initialise()
  void copy_state(State& into) const;                                        // reuses into's memory
  // Generation becomes state.version.generation + 1. Errors: Error when sizes do not fit the layout or a step count is
  // impossible: nothing has changed.
  void restore(State state);

 private:
  void check_push(const PushHeader& header, Bytes gradient) const;
  PushResult repeat(const PushHeader& header);
  Verdict judge(const PushHeader& header, std::uint64_t staleness) const;
  void apply(const PushHeader& header, Bytes gradient);
  void count(const PushHeader& header, const PushResult& result);

  RuleKind rule_;
  std::uint32_t groups_;
  ShardLayout layout_;
  std::optional<std::uint64_t> max_staleness_;
  State state_;
  ShardCounters counters_;
};

}  // namespace downpour::ps
