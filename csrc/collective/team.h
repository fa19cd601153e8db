#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"
#include "csrc/base/clock.h"
#include "csrc/collective/call.h"

namespace downpour::collective {

// One call under way, for the messages of whoever waits in it.
struct Attempt {
  CallShape shape;
  std::uint64_t number = 0;  // of the call in its group, from 0
  TimePoint begun;
  TimePoint deadline;
};
std::string to_string(const Attempt& attempt);  // "all_reduce of 1024 float, sum (call 17)"

// What every member says of itself at the first meeting of a call. A value, copied through shared memory.
struct Announcement {
  std::uint64_t number = 0;
  CallShape shape;
  std::int32_t arena = -1;  // where the tensor lies in memory that all share; -1: in its rank's own
  std::int64_t arena_offset_bytes = 0;
  std::int64_t largest_piece_bytes = 0;  // of an uneven call
};

// The members of a group that share a machine, and the memory through which they meet: for each a line of control words, two
// announcements and two slots that only it writes. A member fills its slot, all meet, everyone reads what it needs of the others'
// slots; after next_slot() the other slot is free to be filled, since whoever has come to the meeting after has read this one.
// Threads: one at a time calls (one call under way); abort(), leave() and is_aborted() any.
// Owns: nothing; the memory outlives it. Nobody trusts what others wrote: indices are our own, announcements are copied out first.
class Team {
 public:
  static constexpr std::int64_t kSlotBytes = std::int64_t{1} << 20;
  static constexpr int kSlots = 2;
  static std::uint64_t memory_bytes(int members);

  // `memory`: memory_bytes(), aligned to pages or cache lines, zero before the first member arrives. `ranks`: the group's rank of each
  // member, for messages. `clock` outlives the team.
  Team(MutableBytes memory, std::vector<int> ranks, int member, const Clock& clock);

  int size() const { return static_cast<int>(ranks_.size()); }
  int member() const { return member_; }
  int rank_of(int member) const { return ranks_[static_cast<std::size_t>(member)]; }

  void announce(const Announcement& announcement);  // for the next meeting
  Announcement announced_by(int member) const;      // at the last meeting

  MutableBytes slot() { return slot_of(member_); }
  MutableBytes slot_of(int member) const;
  void next_slot() { slot_ ^= 1; }

  // Room for a pointer of each member's, for whoever calls: a call allocates nothing.
  std::vector<const void*>& sources() { return sources_; }
  std::vector<void*>& targets() { return targets_; }

  // Waits until every member has come to its meeting of the same number.
  // Blocks: until the attempt's deadline. Errors: TimeoutError naming the ranks that did not come and how long they were waited for;
  // what abort() was given. After either the team is broken: every later meeting throws the same.
  void meet(const Attempt& attempt);

  // From now on a meeting that this member has not come to fails at once. Threads: any.
  void leave(int member);

  // Wakes whoever waits here; the first reason counts. Threads: any.
  void abort(std::exception_ptr why);
  bool is_aborted() const { return aborted_.load(std::memory_order_acquire); }

 private:
  struct Line;
  Line& line(int member) const;
  void wait_for(int member, const Attempt& attempt);
  void sleep_at(Line& line, std::uint32_t seen) const;
  void miss(int member, std::uint32_t seen, const Attempt& attempt);
  void give_up_on_missing(const Attempt& attempt);
  [[noreturn]] void throw_reason() const;

  MutableBytes memory_;
  std::vector<int> ranks_;
  int member_;
  const Clock& clock_;
  std::uint32_t meetings_ = 0;
  std::uint32_t slot_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<std::atomic<bool>[]> left_;
  mutable std::mutex mutex_;
  std::exception_ptr why_;
};

}  // namespace downpour::collective
