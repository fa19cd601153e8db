#pragma once

#include <optional>
#include <vector>

#include "csrc/ps/replay_log.h"

namespace downpour::ps {

// Cuts pushes into fragments and says which is to be sent next: first those that are sent again, whole and in order, then the
// newest one in the order in which its slices are added. [ps 2/7]
// Adjacent slices share a fragment, whichever of them comes first. A fragment never covers an absent slice.
// Knows no connection. Threads: one.
class PushSender {
 public:
  // The log and the layout outlive it. Shapes: fragment_bytes: a multiple of 64.
  PushSender(const ShardLayout& layout, ReplayLog& log, std::int64_t fragment_bytes);
  // Of this size are those made from now on, at least that of the constructor.
  void set_fragment_bytes(std::int64_t bytes) { fragment_bytes_ = bytes; }

  // ---- the newest push -----------------------------------------------------------------------------------------------
  void begin();  // it is the log's newest now
  // Copies a piece of the slice's gradient into the slot, about a fragment; true while some of it is left for another call.
  bool add_some(std::size_t slice, const std::byte* gradient);
  void abandon();

  // ---- what to send --------------------------------------------------------------------------------------------------
  struct Fragment {
    ReplayRecord* record = nullptr;
    std::uint64_t begin = 0, end = 0;  // bytes of the buffer
    bool last = false;
    bool again = false;  // of a push that is sent again
  };
  // nullptr when there is nothing to send now; the same one until sent() is called.
  const Fragment* next();
  void sent();
  bool has_more() const;        // next() has something
  bool has_ended_more() const;  // of a push that ended
  // A new connection: from `sequence` on everything is sent again; of pushes below `known` the header alone.
  void restart(std::uint64_t sequence, std::uint64_t known);

 private:
  struct Run {  // bytes of the buffer, copied and not sent
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  std::int64_t room_for(const Slice& slice, std::int64_t done) const;
  void extend(const Slice& slice, std::int64_t done, std::int64_t count);
  void flush_run();
  void rebuild_runs();
  bool find_again();
  bool find_newest();
  std::optional<Run> next_run_again(const ReplayRecord& record);
  bool walking() const { return again_ < again_end_; }

  const ShardLayout& layout_;
  ReplayLog& log_;
  std::int64_t fragment_bytes_;
  std::vector<std::int64_t> copied_bytes_;  // per slice of the newest push
  std::vector<Run> runs_;                   // complete ones of the newest push, from first_run_ on
  std::size_t first_run_ = 0;
  Run run_;                                  // the one that grows
  bool newest_done_ = true;                  // its last fragment was sent, or there is none
  std::uint64_t again_ = 0, again_end_ = 0;  // sequences sent again
  std::uint64_t known_ = 0;
  std::int64_t again_from_ = 0;  // byte of the buffer where `again_` goes on
  std::optional<Fragment> found_;
};

}  // namespace downpour::ps
