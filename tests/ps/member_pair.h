#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "csrc/ps/lease_book.h"
#include "tests/ps/coordinator_host.h"

// Workers of a coordinator that runs on a thread of its own, over TCP.
namespace downpour::ps::member_pair {

using namespace std::chrono_literals;

// Deadlines of calls that are meant to run into them; everything else has a minute.
inline constexpr Duration kShort = 300ms;
inline Agreement agreement_of(std::int64_t width = 4) {
  Agreement agreement;
  agreement.schema.parameters = {{"weight", {width, 2}}};
  return agreement;
}

inline Agreement with_lead(std::int64_t max_lead) {
  Agreement agreement = agreement_of();
  agreement.max_lead = max_lead;
  return agreement;
}

inline Agreement with_leases(std::int64_t samples) {
  Agreement agreement = agreement_of();
  agreement.samples = samples;
  agreement.lease_samples = 1;
  agreement.epochs = 1;
  return agreement;
}

// Leases are called by their numbers in the plan.
inline std::vector<std::uint64_t> ids(const Leases& leases) {
  std::vector<std::uint64_t> found;
  for (const Lease& lease : leases.leases) {
    found.push_back(lease_number(lease.id));
  }
  return found;
}

inline std::vector<std::uint64_t> of_plan(const Agreement& agreement, std::vector<std::uint64_t> numbers) {
  for (std::uint64_t& number : numbers) {
    number += plan_base(agreement);
  }
  return numbers;
}

// Two workers and a server, agreed.
class Pair {
 public:
  explicit Pair(const Agreement& agreement, Duration first_deadline = 60s, Duration second_deadline = 60s)
      : host({.workers = 2, .servers = 1, .heartbeat = 20ms}) {
    host.start_server(0);
    first = std::make_unique<Member>(host.member(0, first_deadline));
    second = std::make_unique<Member>(host.member(1, second_deadline));
    // Concurrently: whoever comes first decides, and both wait for the server.
    auto other = std::async(std::launch::async, [&] { second->agree(agreement); });
    first->agree(agreement);
    other.get();
  }
  CoordinatorHost host;
  std::unique_ptr<Member> first, second;
};

}  // namespace downpour::ps::member_pair
