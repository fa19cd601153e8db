#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/file.h"
#include "csrc/ps/protocol_member.h"
#include "csrc/ps/shard.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/loop.h"

namespace downpour::ps {

struct SnapshotOptions {
  std::filesystem::path folder;  // empty: no snapshots
  Duration interval = std::chrono::seconds(30);
  double replay_fraction = 0.5;  // or when a worker's pushes since the last one fill this part of its slots
  double largest_duty = 0.1;     // at most this part of the time is spent writing
};

// One shard and the connections to it, on one loop. [ps 4/7], [ps 5/7]
// The rule runs when a push's last fragment has come; a partial push of a lost connection is discarded. Pulls before the
// initial values wait (and hold no credit). Snapshots: the state is copied between two pushes, written by a thread of its own,
// then each worker is told what it covers.
// Threads: its loop's; admit() and fence() any. Blocks: never (the snapshot thread does).
// Errors: a message that breaks the protocol closes its connection and changes nothing else.
class ShardServer final : public transport::Acceptor, public transport::Receiver {
 public:
  // `files` and `loop` outlive it.
  ShardServer(transport::Loop& loop, const Agreement& agreement, int shard, int shard_count, std::uint64_t job,
              SnapshotOptions snapshots, Files& files);
  ~ShardServer() override;  // waits for a snapshot that is being written

  void restore_from_snapshot();    // before the first connection. Errors: those of read_snapshot
  void fence(const Fence& fence);  // closes lower lives of that worker and refuses them from now on
  void snapshot_now();             // asks for one; returns at once
  void save();                     // writes what no snapshot has yet. Blocks: on the disk
  const Shard& shard() const;
  std::uint64_t snapshots_written() const;
  std::string snapshot_error() const;
  // How long the loop should look before it sleeps: not at all unless a push has arrived in part.
  Duration spin() const;

  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override;
  void on_connection(std::unique_ptr<transport::Connection> connection) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ServerOptions {
  int index = 0;
  std::uint64_t job = 0;
  std::string coordinator;  // "host:port"
  int listen_fd = -1;       // handed over by the launcher; -1: bind `address`
  std::string address = "127.0.0.1:0";
  SnapshotOptions snapshots;
  int stop_fd = -1;  // readable: save and end, as when told so; -1: never
  bool insecure = false;
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration silence = std::chrono::seconds(10);
  Files* files = nullptr;  // for snapshots; nullptr: those of the machine
};

// A whole server process: joins the coordinator, gets the schema, owns its shards (one thread each), beats, obeys, ends when
// told. Returns the exit status. Blocks: for the job's life. Errors: CommError when the coordinator is lost.
int run_server(const ServerOptions& options);

}  // namespace downpour::ps
