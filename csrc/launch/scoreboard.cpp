#include "csrc/launch/scoreboard.h"

#include <cmath>
#include <utility>

namespace downpour::launch {
namespace {

constexpr Duration kRateSpan = std::chrono::seconds(1);
constexpr Duration kRateFades = std::chrono::seconds(5);  // a worker without a new sample for so long does 0 samples/s

}  // namespace

void Scoreboard::progress(int index, const ps::Progress& progress, TimePoint now) {
  const auto [at, joined] = workers_.try_emplace(index);
  Worker& worker = at->second;
  const std::int64_t grown = progress.samples - worker.last.samples;
  worker.last = progress;
  if (!std::isnan(progress.loss)) {
    worker.loss = progress.loss;
  }
  if (joined) {
    worker.rate_since = worker.changed = now;
    worker.rate_from = progress.samples;
  }
  first_beat_ = first_beat_.value_or(now);
  if (grown > 0) {
    worker.changed = last_sample_ = now;
  }
  update_rate(worker, now);
}

void Scoreboard::update_rate(Worker& worker, TimePoint now) {
  if (now - worker.rate_since < kRateSpan) {
    return;
  }
  const double fresh = static_cast<double>(worker.last.samples - worker.rate_from) / seconds(now - worker.rate_since);
  worker.rate = worker.rate ? (*worker.rate + fresh) / 2 : fresh;
  worker.rate_since = now;
  worker.rate_from = worker.last.samples;
}

// A new life counts on from what it has restored, which it knows once it has its shards.
void Scoreboard::status(const ps::ServerStatus& status) {
  if (status.shards > 0) {
    servers_[status.server].last = status;
  }
}

void Scoreboard::restarted(Target who) {
  if (is_worker(who)) {
    if (const auto at = workers_.find(who.index); at != workers_.end()) {
      Worker& worker = at->second;
      worker.earlier_samples += worker.last.samples;
      worker.earlier_lost += worker.last.lost;
      worker.last = {};
      worker.rate_from = 0;
      worker.rate.reset();
    }
  } else if (const auto at = servers_.find(who.index); at != servers_.end()) {
    at->second.earlier_snapshots += std::exchange(at->second.last.snapshots, 0);
  }
}

std::map<int, WorkerScore> Scoreboard::workers(TimePoint now) const {
  std::map<int, WorkerScore> result;
  for (const auto& [index, worker] : workers_) {
    WorkerScore& score = result[index];
    score.step = worker.last.step;
    score.samples = worker.earlier_samples + worker.last.samples;
    score.samples_per_second = now - worker.changed > kRateFades ? 0 : worker.rate.value_or(0);
    score.staleness = worker.last.mean_staleness;
    if (!std::isnan(worker.last.loss)) {
      score.loss = worker.last.loss;
    }
  }
  return result;
}

std::optional<double> Scoreboard::mean_loss() const {
  double sum = 0;
  int reported = 0;
  for (const auto& [index, worker] : workers_) {
    sum += worker.loss.value_or(0);
    reported += worker.loss ? 1 : 0;
  }
  return reported > 0 ? std::optional(sum / reported) : std::nullopt;
}

Totals Scoreboard::totals() const {
  Totals totals;
  totals.loss = mean_loss();
  for (const auto& [index, worker] : workers_) {
    totals.samples += worker.earlier_samples + worker.last.samples;
    totals.lost += worker.earlier_lost + worker.last.lost;
    totals.any_progress |= worker.earlier_samples > 0 || worker.last.samples > 0 || worker.last.step > 0;
  }
  for (const auto& [index, server] : servers_) {
    totals.shards += server.last.counters;
    totals.snapshots += server.earlier_snapshots + server.last.snapshots;
    totals.snapshot_error = server.last.snapshot_error.empty() ? totals.snapshot_error : server.last.snapshot_error;
  }
  if (first_beat_ && last_sample_ > *first_beat_) {
    totals.samples_per_second = static_cast<double>(totals.samples) / seconds(last_sample_ - *first_beat_);
  }
  return totals;
}

}  // namespace downpour::launch
