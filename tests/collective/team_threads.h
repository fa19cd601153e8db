#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/base/aligned_bytes.h"
#include "csrc/collective/team_call.h"

// The members of a team as threads of one process that share one piece of memory, as processes share a segment.
namespace downpour::collective {

class TeamThreads {
 public:
  explicit TeamThreads(int members) : memory_(Team::memory_bytes(members)) {
    std::vector<int> ranks(static_cast<std::size_t>(members));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int member = 0; member < members; ++member) {
      teams_.push_back(std::make_unique<Team>(memory_, ranks, member, clock_));
    }
  }

  int size() const { return static_cast<int>(teams_.size()); }
  Team& team(int member) { return *teams_[static_cast<std::size_t>(member)]; }
  const Clock& clock() const { return clock_; }

  // Memory with a part for each member.
  Arena arena(std::int32_t id, std::size_t bytes) {
    Arena arena{id, {}};
    for (int member = 0; member < size(); ++member) {
      parts_.push_back(std::make_unique<AlignedBytes>(bytes));
      arena.parts.emplace_back(*parts_.back());
    }
    return arena;
  }

  Attempt attempt(const CallShape& shape, std::uint64_t number = 0,
                  Duration patience = std::chrono::seconds(60)) const {
    return {shape, number, clock_.now(), clock_.now() + patience};
  }

  void run(const std::function<void(Team& team)>& part) {
    std::vector<std::thread> threads;
    for (const auto& team : teams_) {
      threads.emplace_back([&] { part(*team); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  SteadyClock clock_;
  AlignedBytes memory_;
  std::vector<std::unique_ptr<Team>> teams_;
  std::vector<std::unique_ptr<AlignedBytes>> parts_;
};

}  // namespace downpour::collective
