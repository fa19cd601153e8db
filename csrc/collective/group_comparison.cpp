#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/collective/group_state.h"

// Ranks in different calls over links notice at the first piece of the other call; but each may wait for a third one, so that no piece
// comes at all. Who waits for long tells everybody what it is in, and everybody looks what it was in itself.
namespace downpour::collective {
namespace {

constexpr std::uint16_t kIAmIn = kFirstMessageType + 24;

}  // namespace

std::uint64_t Group::State::record(const CallShape& shape) {
  const std::lock_guard lock(mutex);
  history[calls % history.size()] = shape;
  return calls++;
}

// nullopt: not begun, or too long ago.
std::optional<CallShape> Group::State::recorded(std::uint64_t number) const {
  const std::lock_guard lock(mutex);
  const std::uint64_t begun = calls;
  return number < begun && number + history.size() >= begun ? std::optional(history[number % history.size()])
                                                            : std::nullopt;
}

// "3 barrier, 4 to 40 all_reduce of 1024 float, sum": equal ones in a row are said once.
std::string Group::State::last_calls() const {
  const std::lock_guard lock(mutex);
  const std::uint64_t begun = calls;
  std::string text;
  for (std::uint64_t first = begun - std::min<std::uint64_t>(begun, history.size()), end = first; first < begun;
       first = end) {
    const CallShape& shape = history[first % history.size()];
    while (end < begun && history[end % history.size()] == shape) {
      ++end;
    }
    const std::string range = end - first == 1 ? concat(first) : concat(first, " to ", end - 1);
    text += concat(text.empty() ? "" : ", ", range, " ", to_string(shape));
  }
  return text.empty() ? "none" : text;
}

void Group::State::compare_with_all(const PieceHeader& mine) {
  Writer writer;
  encode(mine, writer);
  for (Link* link : links.all()) {
    if (link->peer() != options.rank) {
      link->send(kIAmIn, writer.bytes());
    }
  }
}

bool Group::State::hears_comparison(Link& link, std::uint16_t type, Bytes body) {
  if (type != kIAmIn) {
    return false;
  }
  const PieceHeader theirs = decode_piece(body);
  if (const auto mine = recorded(theirs.number); mine && *mine != theirs.shape) {
    break_up(std::make_exception_ptr(
        Error(concat("the ranks of the group call different things: rank ", link.peer(), " ", to_string(theirs.shape),
                     ", rank ", options.rank, " ", to_string(*mine), " (call ", theirs.number,
                     "); expected the same calls in the same order, of one size, type and operation, on every rank"))));
  }
  return true;
}

}  // namespace downpour::collective
