#include <algorithm>

#include "csrc/base/log.h"
#include "csrc/ps/generation_file.h"
#include "csrc/ps/shard_server_state.h"

namespace downpour::ps {

// What a worker has decided here when it first comes was restored: the snapshot that it came from covers it.
void ShardServer::State::note_worker(int worker) {
  const std::uint64_t next = shard.next_sequence(worker);
  if (covered.try_emplace(worker, next).second) {
    durable.emplace(worker, next);
  }
}

void ShardServer::State::note_push(const WorkerLink& link) {
  if (writer == nullptr) {
    return;
  }
  schedule.changed();
  const std::uint64_t unsaved = shard.next_sequence(link.worker) - covered[link.worker];
  if (static_cast<double>(unsaved) >= options.replay_fraction * static_cast<double>(link.replay_slots)) {
    schedule.hurry();
  }
  consider_snapshot();
}

// One at a time, until its end has been told here: `covered` is what the one being written covers.
void ShardServer::State::consider_snapshot() {
  if (writer == nullptr || started != ended || !shard.initialised()) {
    return;
  }
  const auto due = schedule.due();
  if (!due) {
    return;
  }
  if (const TimePoint now = loop.now(); *due <= now) {
    start_snapshot(now);
  } else if (!timer || *due < timer_when) {
    set_timer(*due);
  }
}

void ShardServer::State::set_timer(TimePoint when) {
  if (timer) {
    loop.cancel(*timer);
  }
  timer_when = when;
  timer = loop.call_at(when, [this] {
    timer.reset();
    consider_snapshot();
  });
}

void ShardServer::State::start_snapshot(TimePoint now) {
  schedule.started(now);
  for (auto& [worker, next] : covered) {
    next = shard.next_sequence(worker);
  }
  ++started;
  writer->start(shard);
}

void ShardServer::State::on_snapshot(const std::string& found) {
  ++ended;
  schedule.ended(loop.now(), found.empty());
  if (!found.empty() && found != snapshot_error) {
    log_error("shard ", index, ": no snapshot could be written, training goes on without: ", found);
  } else if (found.empty() && !snapshot_error.empty()) {
    log_info("shard ", index, ": snapshots are written again");
  }
  snapshot_error = found;
  if (found.empty()) {
    ++written;
    durable = covered;
    for (const auto& link : links) {
      send_durable(*link);
    }
  }
  for (const auto& link : links) {
    answer_save(*link);
  }
  consider_snapshot();
}

bool ShardServer::State::is_durable(const WorkerLink& link) const {
  const auto below = durable.find(link.worker);
  return (written > 0 || restored) && below != durable.end() && below->second >= shard.next_sequence(link.worker);
}

void ShardServer::State::on_save(WorkerLink& link) {
  link.wants_save = true;
  if (writer != nullptr && is_durable(link)) {
    link.wants_save = false;
    send_durable(link);
  } else if (writer != nullptr) {
    schedule.demand();
    consider_snapshot();
  } else {
    answer_save(link);
  }
}

// A snapshot that began before the question does not answer it: another one follows.
void ShardServer::State::answer_save(WorkerLink& link) {
  if (!link.wants_save) {
    return;
  }
  const std::string trouble = writer == nullptr ? "this job keeps no snapshots" : snapshot_error;
  if (trouble.empty() && !is_durable(link)) {
    schedule.demand();
    return;
  }
  link.wants_save = false;
  if (!trouble.empty()) {
    out.clear();
    encode(Reason{trouble}, out);
    send(link, MessageType::kNotSaved);
  }
}

void ShardServer::State::send_durable(WorkerLink& link) {
  const bool any = written > 0 || restored;
  if (const auto below = durable.find(link.worker); any && below != durable.end()) {
    out.clear();
    encode(Durable{below->second}, out);
    send(link, MessageType::kDurable);
  }
}

void ShardServer::restore_from_snapshot() {
  State& state = *state_;
  if (state.writer == nullptr) {
    return;
  }
  const SnapshotId id{state.index, state.count};
  auto found = read_snapshot(state.files, state.options.folder, id, state.schema, state.shard.layout());
  state.restored = found.has_value();
  const std::uint64_t generation = state.begin_generation(found ? found->version.generation + 1 : 0);
  if (generation > 0) {
    if (!found) {
      found = Shard::zero_state(state.schema, state.shard.layout());
    }
    found->version.generation = generation - 1;
    state.shard.restore(std::move(*found));
  }
  if (state.restored) {
    state.shard.counters() = read_snapshot_counters(state.files, state.options.folder, id, state.job);
    log_info("shard ", state.index, ": restored version ", state.shard.version().version, ", generation ", generation);
  }
}

// A folder that cannot be written is no reason to stay down.
std::uint64_t ShardServer::State::begin_generation(std::uint64_t least) try {
  return ps::begin_generation(files, options.folder, {index, count}, least);
} catch (const Error& failure) {
  log_error("shard ", index, ": ", failure.what());
  return least;
}

void ShardServer::snapshot_now() {
  state_->schedule.demand();
  state_->consider_snapshot();
}

void ShardServer::save() {
  State& state = *state_;
  const auto is_idle = [&] { return state.started == state.ended; };
  state.loop.run_until(is_idle, TimePoint::max());
  if (state.schedule.due()) {
    snapshot_now();
    state.loop.run_until(is_idle, TimePoint::max());
  }
}

}  // namespace downpour::ps
