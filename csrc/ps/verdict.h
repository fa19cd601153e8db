#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csrc/base/bytes.h"

// What a shard decided about each push, so that a push is applied exactly once under retries and restarts.
namespace downpour::ps {

enum class Verdict : std::uint8_t {
  kApplied = 1,
  kStale = 2,      // base version too old: max_staleness
  kRefused = 3,    // non-finite gradient
  kDuplicate = 4,  // its lease was already decided here: another worker's push for the same samples was
};
std::string_view name(Verdict verdict);

// (generation, version): a restored shard starts a new generation, so versions never run backwards.
struct Version {
  std::uint64_t generation = 0;
  std::uint64_t version = 0;  // updates applied
  auto operator<=>(const Version&) const = default;
};

// Per worker: the next sequence expected and the last verdicts. Fixed memory per worker. A value: saved in snapshots.
// Threads: one (the shard's).
class VerdictTable {
 public:
  static constexpr std::uint64_t kWindow = 4096;  // verdicts kept per worker
  static constexpr std::uint64_t kMaxSequence = std::uint64_t{1} << 62;
  static constexpr int kMaxWorkers = 65536;

  std::uint64_t next_sequence(int worker) const;  // 0 for a worker never seen
  // The verdict on `sequence`; nullopt when it is still to come, was declared lost, or left the window.
  std::optional<Verdict> find(int worker, std::uint64_t sequence) const;
  // Allocates for a worker's first push only.
  // Errors: Error when sequence != next_sequence(worker) (a gap or a repeat, to be decided by the caller before), for a
  // worker outside 0 .. kMaxWorkers - 1; nothing has changed.
  void record(int worker, std::uint64_t sequence, Verdict verdict);
  // Declares the pushes next_sequence .. sequence-1 as lost (beyond the replay budget). Returns how many; 0 when there
  // are none. Errors: Error for a sequence above kMaxSequence and for such a worker; nothing has changed.
  std::uint64_t skip_to(int worker, std::uint64_t sequence);

  void encode(Writer& out) const;          // ascending workers: equal tables are equal bytes
  static VerdictTable decode(Reader& in);  // Errors: ProtocolError
  bool operator==(const VerdictTable&) const = default;

 private:
  static constexpr std::uint8_t kNoVerdict = 0;
  struct Row {
    std::uint64_t next = 0;
    // The verdict on sequence s at s % kWindow; kNoVerdict for those to come and those lost.
    std::array<std::uint8_t, kWindow> last{};
    bool operator==(const Row&) const = default;
  };
  Row& row_of(int worker);
  static Row decode_row(Reader& in, int worker);

  std::unordered_map<int, Row> rows_;
};

// Which leases a shard has decided: lease ids of one plan follow one another and mostly arrive in order, so a few runs of them.
// Threads: one.
class LeaseTable {
 public:
  static constexpr std::uint64_t kMaxLease = std::uint64_t{1} << 62;
  struct Run {  // begin .. end - 1
    std::uint64_t begin = 0, end = 0;
    bool operator==(const Run&) const = default;
  };

  LeaseTable() = default;
  explicit LeaseTable(Run run);  // Errors: Error for an empty run, lease 0, or one above kMaxLease
  static LeaseTable all() { return LeaseTable(Run{1, kMaxLease + 1}); }

  bool decided(std::uint64_t lease) const;  // 0 means no lease: never decided
  void record(std::uint64_t lease);         // ignores 0 and decided ones. Errors: Error above kMaxLease
  std::uint64_t count() const;              // leases decided so far
  const std::vector<Run>& runs() const;     // ascending, with at least one undecided lease between two
  LeaseTable intersection(const LeaseTable& other) const;
  LeaseTable without(const LeaseTable& other) const;
  LeaseTable first_runs(std::size_t most) const;  // so many of them, so that a message about them is bounded
  void encode(Writer& out) const;
  static LeaseTable decode(Reader& in);  // Errors: ProtocolError
  bool operator==(const LeaseTable&) const = default;

 private:
  void append(Run run);  // behind all others

  std::vector<Run> runs_;
  std::uint64_t count_ = 0;
};

}  // namespace downpour::ps
