#pragma once

#include <string>
#include <vector>

namespace downpour::collective {

// Which ranks of a group share a machine: a value, the same on every rank.
class Machines {
 public:
  // `reached[r][s]`: whether rank r reaches rank s through shared memory; itself always. Ranks are together where all of them reach all
  // of them; a rank that does not fit stays alone.
  explicit Machines(const std::vector<std::vector<bool>>& reached);

  int count() const { return static_cast<int>(machines_.size()); }
  const std::vector<int>& ranks(int machine) const { return machines_[static_cast<std::size_t>(machine)]; }
  int of(int rank) const { return of_[static_cast<std::size_t>(rank)]; }
  int leader(int machine) const { return ranks(machine).front(); }
  int member(int rank) const;  // its place among the ranks of its machine
  std::string medium() const;  // "shm", "tcp", "shm and tcp"

 private:
  std::vector<std::vector<int>> machines_;  // in the order of their leaders; ranks ascending
  std::vector<int> of_;
};

}  // namespace downpour::collective
