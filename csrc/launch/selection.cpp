#include "csrc/launch/selection.h"

#include <charconv>

namespace downpour::launch {
namespace {

constexpr int kLargestIndex = 65535;

bool parse_index(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kLargestIndex;
}

// "3" or "0-7".
bool parse_range(std::string_view text, int& first, int& last) {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) {
    return parse_index(text, first) && (last = first, true);
  }
  return parse_index(text.substr(0, dash), first) && parse_index(text.substr(dash + 1), last) && first <= last;
}

}  // namespace

Selection Selection::all() {
  Selection result;
  result.all_workers_ = result.all_servers_ = true;
  return result;
}

void Selection::add(std::string_view part) {
  if (part == "none") {
    return;
  }
  const bool all = part == "all";
  if (all || part == "workers" || part == "servers") {
    all_workers_ |= all || part == "workers";
    all_servers_ |= all || part == "servers";
    return;
  }
  auto kind = Target::Kind::kWorker;
  std::string_view range = part;
  if (part.starts_with("worker:") || part.starts_with("server:")) {
    kind = part.starts_with("server:") ? Target::Kind::kServer : kind;
    range.remove_prefix(7);
  }
  int first = 0;
  int last = 0;
  DOWNPOUR_CHECK(
      parse_range(range, first, last), "'", part,
      "' names no process; expected all, none, workers, servers, a rank (3), ranks (0-7), worker:3 or server:0");
  for (int index = first; index <= last; ++index) {
    chosen_.insert({kind, index});
  }
}

Selection Selection::parse(std::string_view text) {
  Selection result;
  while (true) {
    const auto comma = text.find(',');
    result.add(text.substr(0, comma));
    if (comma == std::string_view::npos) {
      return result;
    }
    text.remove_prefix(comma + 1);
  }
}

bool Selection::contains(Target who) const {
  return (is_worker(who) ? all_workers_ : all_servers_) || chosen_.contains(who);
}

}  // namespace downpour::launch
