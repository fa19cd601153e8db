#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/ps/partition.h"
#include "csrc/ps/shard.h"

namespace downpour::ps {

// One push to one shard, as long as the worker keeps it.
struct ReplayRecord {
  std::uint64_t push = 0;  // the client's number of the push over all shards
  std::uint32_t slot = 0;
  PushHeader header;                  // replayed and exempt_from_staleness are set when it is sent
  std::vector<GradientCheck> checks;  // by group, of what has been added
  std::optional<Verdict> verdict;     // nullopt: the shard has not decided
  bool ended = false;                 // its header is complete
  bool in_flight = false;             // sent in part at least, and may be read yet: its bytes must stay
};

// A worker's pushes to one shard from the oldest that a crash of the server may still need to the newest: contiguous sequences,
// each in a slot of its own. Slots are used again last out first in, so that few pages are touched; beyond the budget the
// oldest decided push gives its slot away.
// Knows no connection. Threads: one. Owns: the records; the slots' memory belongs to `keeper`.
class ReplayLog {
 public:
  ReplayLog(const ShardLayout& layout, std::uint32_t groups);  // the layout outlives it

  // Moves what is held into other memory of `slots` slots, in order; where they are fewer, the oldest decided ones go.
  // Errors: Error when even then there is no room: nothing has changed.
  void move_to(MutableBytes memory, std::uint32_t slots, std::shared_ptr<void> keeper);
  std::uint32_t slots() const { return static_cast<std::uint32_t>(ring_.size()); }

  std::uint64_t first() const { return first_; }
  std::uint64_t next() const { return next_; }  // the sequence that begin() will give
  bool is_empty() const { return first_ == next_; }
  bool has_ended() const;                      // holds a push that ended
  ReplayRecord* find(std::uint64_t sequence);  // nullptr when it is not held
  ReplayRecord& newest() { return record(next_ - 1); }
  MutableBytes slot(const ReplayRecord& record) const;

  bool has_room() const;  // begin() may be called
  ReplayRecord& begin(std::uint64_t push, std::uint64_t lease, Version base);
  void end_newest(std::span<const Hyper> groups);
  void abandon_newest();
  void release_below(std::uint64_t sequence);  // those that are decided and not in flight, the oldest first
  void connection_lost();                      // and nobody reads from it any more: nothing is in flight
  // Forgets all that ended and gives the one that has not, and those to come, sequences from `sequence` on.
  void renumber(std::uint64_t sequence);

 private:
  ReplayRecord& record(std::uint64_t sequence) { return ring_[sequence % ring_.size()]; }
  const ReplayRecord& record(std::uint64_t sequence) const { return ring_[sequence % ring_.size()]; }
  bool may_drop_first() const;
  void drop_first();
  std::vector<ReplayRecord> new_ring(std::uint32_t slots) const;

  const ShardLayout& layout_;
  const std::uint32_t groups_;
  const std::uint64_t buffer_bytes_;
  MutableBytes memory_;
  std::shared_ptr<void> keeper_;     // of memory_: shared with the connection whose segment it is
  std::vector<ReplayRecord> ring_;   // by sequence modulo its size
  std::vector<std::uint32_t> free_;  // slots, the next one last
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace downpour::ps
