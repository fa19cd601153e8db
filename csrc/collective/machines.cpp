#include "csrc/collective/machines.h"

#include <algorithm>

namespace downpour::collective {
namespace {

bool fits(const std::vector<std::vector<bool>>& reached, const std::vector<int>& ranks, int rank) {
  const auto newcomer = static_cast<std::size_t>(rank);
  return std::ranges::all_of(ranks, [&](int other) {
    const auto member = static_cast<std::size_t>(other);
    return reached[member][newcomer] && reached[newcomer][member];
  });
}

}  // namespace

Machines::Machines(const std::vector<std::vector<bool>>& reached) {
  for (int rank = 0; rank < static_cast<int>(reached.size()); ++rank) {
    const auto found = std::ranges::find_if(machines_, [&](const auto& ranks) { return fits(reached, ranks, rank); });
    of_.push_back(static_cast<int>(found - machines_.begin()));
    if (found == machines_.end()) {
      machines_.push_back({rank});
    } else {
      found->push_back(rank);
    }
  }
}

int Machines::member(int rank) const {
  const auto& ranks = this->ranks(of(rank));
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

std::string Machines::medium() const {
  const bool some_share = std::ranges::any_of(machines_, [](const auto& ranks) { return ranks.size() > 1; });
  return count() == 1 ? "shm" : some_share ? "shm and tcp" : "tcp";
}

}  // namespace downpour::collective
