#include "csrc/base/random.h"

#include <sys/random.h>

#include <numeric>
#include <utility>

#include "csrc/base/error.h"

namespace downpour {

std::uint64_t system_random() {
  std::uint64_t value = 0;
  DOWNPOUR_CHECK(::getrandom(&value, sizeof(value), 0) == sizeof(value), "getrandom gave no bytes");
  return value;
}

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

}  // namespace downpour
