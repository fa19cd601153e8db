#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/launch/target_text.h"
#include "csrc/ps/protocol_member.h"

namespace downpour::launch {

// A worker as its beats describe it.
struct WorkerScore {
  std::int64_t step = 0;          // of the current life
  std::int64_t samples = 0;       // over all lives
  double samples_per_second = 0;  // lately
  std::optional<double> loss;
  double staleness = 0;  // mean, in updates
};

// The whole job so far.
struct Totals {
  std::int64_t samples = 0;
  double samples_per_second = 0;  // from the first beat of any worker to the last sample
  std::optional<double> loss;     // mean of the last one that each worker reported; nullopt: none did
  ps::ShardCounters shards;       // summed over servers
  std::uint64_t lost = 0;         // pushes that workers declared lost
  std::uint64_t snapshots = 0;
  std::string snapshot_error;  // the last one said by any server
  bool any_progress = false;
};

// Adds up what workers and servers report, over all their lives. A restarted worker counts from zero again; a restarted server
// counts on from its snapshot, since what it had done after that is undone, and done again by replay.
// Pure: time is handed in. Threads: one.
class Scoreboard {
 public:
  void progress(int worker, const ps::Progress& progress, TimePoint now);
  void status(const ps::ServerStatus& status);
  void restarted(Target who);  // a new life begins

  std::map<int, WorkerScore> workers(TimePoint now) const;
  Totals totals() const;

 private:
  struct Worker {
    ps::Progress last;
    std::optional<double> loss;        // the last one reported, in whichever life
    std::int64_t earlier_samples = 0;  // of former lives
    std::uint64_t earlier_lost = 0;
    TimePoint rate_since{};  // of the span that the current rate is taken over
    std::int64_t rate_from = 0;
    std::optional<double> rate;
    TimePoint changed{};
  };
  struct Server {
    ps::ServerStatus last;
    std::uint64_t earlier_snapshots = 0;  // of former lives
  };

  void update_rate(Worker& worker, TimePoint now);
  std::optional<double> mean_loss() const;

  std::map<int, Worker> workers_;
  std::map<int, Server> servers_;
  std::optional<TimePoint> first_beat_;
  TimePoint last_sample_{};
};

}  // namespace downpour::launch
