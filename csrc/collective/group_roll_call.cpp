#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/collective/group_state.h"

// When a call over links is not done in time, the rank that this one waits for may itself only wait for another. So every rank is asked
// whether it has begun the call, or is still in one before it; the thread of its links answers, whatever its program is doing, unless
// the whole process stands still.
namespace downpour::collective {
namespace {

constexpr Duration kPatience = std::chrono::seconds(1);

enum Type : std::uint16_t { kAsked = kFirstMessageType + 16, kAnswered };

}  // namespace

// Throws where somebody is.
void Group::State::name_late(const Attempt& attempt) {
  const std::vector<int> late = roll_call(attempt.number);
  DOWNPOUR_CHECK_AS(TimeoutError, late.empty(), to_string(attempt), ": ", list_of(late), " did not come within ",
                    seconds(attempt.deadline - attempt.begun), " s");
}

// The ranks that are neither in call `number` nor in one before it, and those that do not answer. What a broken group finds does not
// count.
std::vector<int> Group::State::roll_call(std::uint64_t number) {
  std::unique_lock lock(mutex);
  present.assign(static_cast<std::size_t>(options.world), std::nullopt);
  loop.post([this, number] { ask_all(number); });
  changed.wait_until(lock, clock.now() + kPatience, [this] {
    return why_broken != nullptr || std::ranges::all_of(present, [](const auto& answer) { return answer.has_value(); });
  });
  std::vector<int> late;
  for (int rank = 0; rank < options.world; ++rank) {
    if (!present[static_cast<std::size_t>(rank)].value_or(false)) {
      late.push_back(rank);
    }
  }
  present.clear();
  return late;
}

// A rank that has ended its group is not late: whoever needs it hears that it has.
void Group::State::ask_all(std::uint64_t number) {
  for (Link* link : links.all()) {
    if (link->peer() == options.rank || link->has_left()) {
      note_presence(link->peer(), true);
    } else {
      link->send(kAsked, std::as_bytes(std::span(&number, 1)));
    }
  }
}

void Group::State::note_presence(int rank, bool is_present) {
  const std::lock_guard lock(mutex);
  if (!present.empty()) {
    present[static_cast<std::size_t>(rank)] = is_present;
    changed.notify_all();
  }
}

bool Group::State::is_present_in(std::uint64_t number) const {
  const std::lock_guard lock(mutex);
  return calls > number || turn_of != std::thread::id();
}

bool Group::State::hears_roll_call(Link& link, std::uint16_t type, Bytes body) {
  if (type != kAsked && type != kAnswered) {
    return false;
  }
  Reader reader(body, "roll call");
  if (type == kAsked) {
    const std::uint8_t is_present = is_present_in(reader.get<std::uint64_t>()) ? 1 : 0;
    link.send(kAnswered, std::as_bytes(std::span(&is_present, 1)));
  } else {
    note_presence(link.peer(), reader.get<std::uint8_t>() != 0);
  }
  reader.finish();
  return true;
}

}  // namespace downpour::collective
