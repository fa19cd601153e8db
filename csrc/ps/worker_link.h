#pragma once

#include <memory>
#include <optional>

#include "csrc/ps/life_table.h"
#include "csrc/ps/push_assembly.h"
#include "csrc/transport/connection.h"

namespace downpour::ps {

// A shard's end of one worker's connection. Threads: the shard's.
struct WorkerLink {
  WorkerLink(std::unique_ptr<transport::Connection> the_connection, LifeTable::Life its_life, const ShardLayout& layout)
      : worker(the_connection->hello().rank), life(its_life), assembly(layout), connection(std::move(the_connection)) {}

  int worker = 0;
  LifeTable::Life life;
  std::uint32_t slots = 0;         // of its window
  std::uint64_t replay_slots = 0;  // pushes it can keep for a replay
  PushAssembly assembly;
  std::int64_t initialised_bytes = 0;        // of the values it offers
  std::optional<std::uint64_t> parked_pull;  // a request that waits for the initial values
  bool wants_save = false;                   // waits to hear that a snapshot covers its pushes, or why none does
  std::uint32_t ungranted = 0;               // credits to give back
  std::uint32_t unread = 0;                  // messages sent since it last had none left to read
  std::unique_ptr<transport::Connection> connection;  // last: it may still read what it sends when it ends
};

}  // namespace downpour::ps
