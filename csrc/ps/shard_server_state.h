#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/ps/life_table.h"
#include "csrc/ps/server.h"
#include "csrc/ps/snapshot_schedule.h"
#include "csrc/ps/snapshot_writer.h"
#include "csrc/ps/worker_link.h"

namespace downpour::ps {

// For shard_*.cpp only.
struct ShardServer::State {
  State(transport::Loop& the_loop, const Agreement& the_agreement, int the_index, int the_count, std::uint64_t the_job,
        SnapshotOptions snapshot_options, Files& the_files);
  ~State();

  // ---- who is connected (shard_server.cpp) ---------------------------------------------------------------------------
  std::optional<std::string> refusal(const transport::Hello& hello, const JoinShard& join) const;
  transport::Welcome welcome(const JoinShard& join, transport::Medium medium) const;
  std::uint32_t granted_slots(std::uint32_t wanted, transport::Medium medium) const;
  WorkerLink* find(const transport::Connection& connection);
  void add(std::unique_ptr<WorkerLink> link);
  void drop(const transport::Connection& connection);
  void drop_dead_lives();
  void send(WorkerLink& link, MessageType type);  // what out holds
  void put(WorkerLink& link, MessageType type, Bytes bulk, std::uint64_t offset);
  void count_unread(WorkerLink& link);

  // ---- their messages (shard_messages.cpp) ---------------------------------------------------------------------------
  void handle(WorkerLink& link, const transport::Message& message);
  void on_resume(WorkerLink& link, const Resume& resume);
  void on_initialise(WorkerLink& link, const transport::Message& message);
  void on_first_values();
  void on_push(WorkerLink& link, const transport::Message& message);
  void on_fragment(WorkerLink& link, const transport::Message& message);
  void decide(WorkerLink& link, Bytes gradient);
  void on_pull(WorkerLink& link, std::uint64_t request);
  void answer(WorkerLink& link, std::uint64_t request);
  void give_credit_back(WorkerLink& link, const transport::Message& message, bool at_once);

  // ---- snapshots (shard_snapshots.cpp) -------------------------------------------------------------------------------
  void note_worker(int worker);
  void note_push(const WorkerLink& link);
  void consider_snapshot();
  void start_snapshot(TimePoint now);
  void set_timer(TimePoint when);
  void on_snapshot(const std::string& error);
  void on_save(WorkerLink& link);
  void answer_save(WorkerLink& link);
  bool is_durable(const WorkerLink& link) const;
  void send_durable(WorkerLink& link);
  std::uint64_t begin_generation(std::uint64_t least);

  transport::Loop& loop;
  const Schema schema;
  const std::uint64_t schema_hash;
  const int index;
  const int count;
  const std::uint64_t job;
  const SnapshotOptions options;
  Files& files;
  Shard shard;
  const std::uint64_t buffer_bytes;
  const std::uint64_t value_bytes;  // without what lies between the slices
  LifeTable lives;
  std::uint64_t seen_life_changes = 0;
  std::vector<std::unique_ptr<WorkerLink>> links;
  PushFragment fragment;  // decoded into, again and again
  Writer out;

  SnapshotSchedule schedule;
  std::unordered_map<int, std::uint64_t> covered;  // by the last snapshot started: next sequence per worker seen
  std::unordered_map<int, std::uint64_t> durable;  // by the last good one
  std::optional<transport::Loop::TimerId> timer;
  TimePoint timer_when{};
  bool restored = false;                                                  // from a snapshot
  std::uint64_t started = 0, ended = 0;                                   // snapshots
  std::uint64_t written = 0;                                              // good ones
  std::string snapshot_error;                                             // of the last one; empty: it is good
  std::shared_ptr<const char> life = std::make_shared<const char>('\0');  // only ever watched: expires with this
  std::unique_ptr<SnapshotWriter> writer;                                 // last: its thread ends first
};

}  // namespace downpour::ps
