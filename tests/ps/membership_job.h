#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "csrc/ps/membership.h"

// A membership, the time it is told, and ways to look at what it wants done.
namespace downpour::ps::membership_job {

using namespace std::chrono_literals;

// The actions of one kind, in order.
template <typename T>
std::vector<T> only(const Actions& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const T* it = std::get_if<T>(&action)) {
      found.push_back(*it);
    }
  }
  return found;
}

template <typename T>
std::vector<std::string> targets(const Actions& actions) {
  std::vector<std::string> names;
  for (const T& action : only<T>(actions)) {
    names.push_back(text(action.to));
  }
  return names;
}

template <typename T>
std::optional<std::size_t> place(const Actions& actions) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (std::holds_alternative<T>(actions[i])) {
      return i;
    }
  }
  return std::nullopt;
}

inline std::string notes(const Actions& actions) {
  std::string all;
  for (const Note& note : only<Note>(actions)) {
    all += note.text + "\n";
  }
  return all;
}

inline Agreement agreement_of(std::int64_t width = 4) {
  Agreement agreement;
  agreement.schema.parameters = {{"weight", {width, 2}}, {"bias", {width}}};
  return agreement;
}

inline Agreement with_leases(std::int64_t samples, std::int64_t epochs = 1) {
  Agreement agreement = agreement_of();
  agreement.samples = samples;
  agreement.lease_samples = 1;
  agreement.epochs = epochs;
  return agreement;
}

inline Agreement with_lead(std::int64_t max_lead) {
  Agreement agreement = agreement_of();
  agreement.max_lead = max_lead;
  return agreement;
}

// A server made its shards, all of which have decided `leases`.
inline ServerReady ready_for(const Agreement& agreement, LeaseTable leases = {}) {
  return {agreement.schema.hash(), std::move(leases)};
}

// A membership and the time it is told.
class Job {
 public:
  Job(int workers, int servers, int shards = 0)
      : membership({.workers = workers, .servers = servers, .shards = shards}) {}

  Actions join_worker(int index, std::int64_t pid = 0) {
    return membership.join(worker_target(index), pid != 0 ? pid : 100 + index, clock.now());
  }
  Actions join_server(int index, std::int64_t pid = 0) {
    return membership.join(server_target(index), pid != 0 ? pid : 200 + index, clock.now());
  }
  Actions lose(Target target) { return membership.leave(target, false, clock.now()); }
  Actions say_goodbye(int worker) { return membership.leave(worker_target(worker), true, clock.now()); }
  // Turns the clock in heartbeats and checks at each; `alive` are heard all the while.
  Actions pass(Duration time, const std::vector<Target>& alive = {}) {
    Actions all;
    for (Duration passed{}; passed < time; passed += 100ms) {
      clock.advance(100ms);
      for (const Target& target : alive) {
        membership.heard(target, clock.now());
      }
      for (Action& action : membership.check(clock.now())) {
        all.push_back(std::move(action));
      }
    }
    return all;
  }
  void everyone_joins() {
    for (int index = 0; index < membership.options().servers; ++index) {
      join_server(index);
    }
    for (int index = 0; index < membership.options().workers; ++index) {
      join_worker(index);
    }
  }
  // All joined, agreed and with shards made.
  void starts(const Agreement& agreement) {
    everyone_joins();
    for (int index = 0; index < membership.options().workers; ++index) {
      membership.offer(index, agreement);
    }
    for (int index = 0; index < membership.options().servers; ++index) {
      membership.server_ready(index, ready_for(agreement));
    }
  }

  ManualClock clock;
  Membership membership;
};

inline std::vector<std::int64_t> clocks(const Actions& actions) {
  std::vector<std::int64_t> found;
  for (const auto& action : only<SendMinimumClock>(actions)) {
    found.push_back(action.minimum.clock);
  }
  return found;
}

// Leases are called by their numbers in the plan.
inline std::vector<std::uint64_t> ids(const Actions& actions) {
  std::vector<std::uint64_t> found;
  for (const auto& action : only<SendLeases>(actions)) {
    for (const Lease& lease : action.leases.leases) {
      found.push_back(lease_number(lease.id));
    }
  }
  return found;
}

inline Actions done(Job& job, int worker, std::vector<std::uint64_t> leases) {
  for (std::uint64_t& lease : leases) {
    lease += job.membership.leases()->base();
  }
  return job.membership.leases_done(worker, leases);
}

inline const Target kWorker0 = worker_target(0), kWorker1 = worker_target(1), kWorker2 = worker_target(2);
inline const Target kServer0 = server_target(0), kServer1 = server_target(1);

}  // namespace downpour::ps::membership_job
