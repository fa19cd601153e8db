#pragma once

#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "csrc/collective/group.h"
#include "tests/collective/table_bulletin.h"

// The ranks of a group as threads of one process, over the machine's own shared memory and TCP.
namespace downpour::collective {

enum class Medium { kSharedMemory, kTcp, kBoth };  // kBoth: two machines, odd and even ranks
inline std::string name(Medium medium) {
  return medium == Medium::kSharedMemory ? "shm" : medium == Medium::kTcp ? "tcp" : "both";
}

inline GroupOptions options_of(Medium medium, int rank, int world) {
  GroupOptions options;
  options.rank = rank;
  options.world = world;
  options.shared_memory = medium == Medium::kTcp ? transport::SharedMemory::kNever : transport::SharedMemory::kAuto;
  if (medium == Medium::kBoth) {
    options.machine = rank % 2 == 0 ? "even" : "odd";
  }
  return options;
}

// Runs a thread for each rank of `ranks`, and waits for all.
inline void on_threads(const std::vector<int>& ranks, const std::function<void(int rank)>& part) {
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank] { part(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

inline std::vector<int> ranks_of(int world) {
  std::vector<int> ranks(static_cast<std::size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Forms a group of `world` threads, which all know that it is complete when `part` begins; what a part throws ends the program.
inline void with_group(Medium medium, int world, const std::function<void(Group& group)>& part) {
  TableBulletin bulletin;
  std::latch all_know(world);  // an abort may reach a rank that is still in the barrier
  on_threads(ranks_of(world), [&](int rank) {
    const auto group = Group::form(bulletin, options_of(medium, rank, world));
    group->run({}, std::chrono::seconds(60));
    all_know.arrive_and_wait();
    part(*group);
  });
}

}  // namespace downpour::collective
