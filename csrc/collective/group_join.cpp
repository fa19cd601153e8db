#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "csrc/collective/group_state.h"

namespace downpour::collective {
namespace {

constexpr Duration kOneMoreLook = std::chrono::milliseconds(1);

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[noreturn]] void miss(const GroupOptions& options, const std::vector<int>& ranks) {
  throw TimeoutError(concat("a group of ", options.world, " ranks is not complete: ", list_of(ranks),
                            " did not come to rank ", options.rank, " within ", seconds(options.join_deadline),
                            " s; expected every rank to make the group, with the same world size and rendezvous"));
}

struct Whereabouts {
  transport::Endpoint endpoint;
  std::string machine;
};

// As pinned up: the address, a space, the machine's name.
Whereabouts whereabouts(const std::string& text, transport::Exposure exposure) {
  const std::size_t space = text.find(' ');
  DOWNPOUR_CHECK_AS(ProtocolError, space != std::string::npos, "the bulletin holds '", text,
                    "' where an address should be");
  return {transport::look_up(transport::parse_address(text.substr(0, space)), exposure), text.substr(space + 1)};
}

// Rank 0 draws it; the others read it.
std::uint64_t agree_on_group(Bulletin& bulletin, const GroupOptions& options, TimePoint deadline) {
  if (options.rank == 0) {
    const std::uint64_t group = system_random();
    bulletin.put("group", std::as_bytes(std::span(&group, 1)));
    return group;
  }
  std::vector<std::byte> found;
  try {
    found = bulletin.get("group", deadline);
  } catch (const TimeoutError&) {
    miss(options, {0});
  }
  std::uint64_t group = 0;
  DOWNPOUR_CHECK_AS(ProtocolError, found.size() == sizeof(group), "the bulletin holds ", found.size(),
                    " bytes where the group's number should be");
  std::memcpy(&group, found.data(), sizeof(group));
  return group;
}

LinksOptions links_options(Bulletin& bulletin, const GroupOptions& options, TimePoint deadline) {
  LinksOptions result;
  result.group = options.world > 1 ? agree_on_group(bulletin, options, deadline) : 0;
  result.rank = options.rank;
  result.world = options.world;
  result.connect_deadline = options.join_deadline;
  result.heartbeat = options.heartbeat;
  result.warn_after = options.warn_after;
  result.silence = options.silence;
  return result;
}

}  // namespace

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

Group::State::State(Bulletin& with, const GroupOptions& given)
    : options(given),
      bulletin(with),
      pid(getpid()),
      loop(clock),
      links(links_options(bulletin, options, clock.now() + options.join_deadline), *this),
      messages(links) {}

void Group::State::join() {
  const TimePoint deadline = clock.now() + options.join_deadline;
  if (options.world == 1) {
    machines.emplace(std::vector<std::vector<bool>>{{true}});
    return;
  }
  listen_and_connect();
  links_thread = std::thread([this] { serve_links(); });
  await_links(deadline);
  learn_machines(deadline);
  is_joined = true;
  // A rank may have left, or been lost, while this one was still learning.
  loop.post([this] {
    for (const Link* link : links.all()) {
      if (link->has_left()) {
        on_left(link->peer());
      }
    }
  });
  check_unbroken();
}

// Everyone pins up where it listens; who has a higher rank comes there.
void Group::State::listen_and_connect() {
  const TimePoint deadline = clock.now() + options.join_deadline;
  const auto exposure = transport::exposure_of(options);
  Fd socket = transport::bind_socket({options.host, 0}, exposure);
  const std::string address = transport::local_address(socket.get()).text();
  listener = transport::listen_tcp(loop, std::move(socket), links, options.shared_memory, exposure);
  bulletin.put(concat("address/", options.rank), as_bytes(concat(address, " ", options.machine)));
  std::vector<Whereabouts> others;
  for (int rank = 0; rank < options.rank; ++rank) {
    others.push_back(whereabouts(pinned("address", rank, deadline), exposure));
  }
  links.connect([&](int rank, const transport::Hello& hello, transport::Receiver& receiver,
                    const transport::ConnectOptions& terms) {
    const Whereabouts& other = others[static_cast<std::size_t>(rank)];
    const bool apart = other.machine != options.machine;
    return transport::connect_tcp(loop, other.endpoint, hello, receiver,
                                  apart ? transport::SharedMemory::kNever : options.shared_memory, terms);
  });
}

std::string Group::State::pinned(const std::string& key, int rank, TimePoint deadline) {
  try {
    return text_of(read(concat(key, "/", rank), deadline));
  } catch (const TimeoutError&) {
    std::vector<int> ranks;
    for (int other = rank; other < options.world; ++other) {
      ranks.push_back(other);
    }
    miss(options, without(key, ranks));
  }
}

// Those of the ranks that have not pinned it up; all of them when none of them is to blame.
std::vector<int> Group::State::without(const std::string& key, const std::vector<int>& ranks) {
  std::vector<int> absent;
  for (const int rank : ranks) {
    try {
      bulletin.get(concat(key, "/", rank), clock.now() + kOneMoreLook);
    } catch (const TimeoutError&) {
      absent.push_back(rank);
    }
  }
  return absent.empty() ? ranks : absent;
}

void Group::State::await_links(TimePoint deadline) {
  std::unique_lock lock(mutex);
  const bool settled = changed.wait_until(lock, deadline, [this] { return open || why_broken != nullptr; });
  if (why_broken != nullptr) {
    std::rethrow_exception(why_broken);
  }
  if (!settled) {
    std::vector<int> unconnected;
    lock.unlock();
    on_links_thread([&] { unconnected = links.missing(); });
    miss(options, without("address", unconnected));  // who came and waits for one that did not is not to blame
  }
}

// A digit for each rank: whether it is reached through shared memory.
std::string Group::State::shared_links() {
  std::string digits(static_cast<std::size_t>(options.world), '0');
  on_links_thread([&] {
    for (const Link* link : links.all()) {
      const bool shared = link->peer() == options.rank ||
                          (link->is_open() && link->connection()->medium() == transport::Medium::kSharedMemory);
      digits[static_cast<std::size_t>(link->peer())] = shared ? '1' : '0';
    }
  });
  return digits;
}

// Which ranks share a machine was proved link by link; everyone pins up what it found, so that all come to the same conclusion.
void Group::State::learn_machines(TimePoint deadline) {
  const std::string mine = shared_links();
  bulletin.put(concat("shared/", options.rank), as_bytes(mine));
  std::vector<std::vector<bool>> reached;
  for (int rank = 0; rank < options.world; ++rank) {
    const std::string theirs = pinned("shared", rank, deadline);
    DOWNPOUR_CHECK_AS(ProtocolError, theirs.size() == mine.size(), "rank ", rank, " speaks of a world of ",
                      theirs.size(), ", this is one of ", mine.size());
    reached.emplace_back();
    std::ranges::transform(theirs, std::back_inserter(reached.back()), [](char digit) { return digit == '1'; });
  }
  machines.emplace(reached);
  const std::vector<int>& ranks = machines->ranks(my_machine());
  if (ranks.size() > 1) {
    team_memory = share_memory("memory", Team::memory_bytes(static_cast<int>(ranks.size())), deadline);
    team.emplace(team_memory.bytes(), ranks, machines->member(options.rank), clock);
  }
}

}  // namespace downpour::collective
