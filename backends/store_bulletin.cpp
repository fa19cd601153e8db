#include "backends/store_bulletin.h"

#include <chrono>

#include "csrc/base/error.h"

namespace downpour::backends {
namespace {

// c10d has no type of error for a wait that took too long, so the clock tells it from a store that is lost.
template <typename Action>
auto over_store(const char* what, const std::string& key, TimePoint deadline, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    const std::string text = concat("the store, ", what, " '", key, "': ", error.what());
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TimeoutError(text);
    }
    throw CommError(text);
  }
}

}  // namespace

void StoreBulletin::put(const std::string& key, Bytes value) {
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(value.data());
  const bool is_first = over_store("setting", key, TimePoint::max(), [&] {
    const bool first = store_->add(key + "/put", 1) == 1;
    if (first) {
      store_->set(key, std::vector<std::uint8_t>(begin, begin + value.size()));
    }
    return first;
  });
  DOWNPOUR_CHECK(
      is_first, "'", key,
      "' is in the store already: another process has this rank, or an earlier group used the same store and "
      "name; give each process its own RANK, each group its own name");
}

std::vector<std::byte> StoreBulletin::get(const std::string& key, TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return over_store("waiting for", key, deadline, [&] {
    store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));
    const std::vector<std::uint8_t> value = store_->get(key);
    const auto* const begin = reinterpret_cast<const std::byte*>(value.data());
    return std::vector<std::byte>(begin, begin + value.size());
  });
}

}  // namespace downpour::backends
