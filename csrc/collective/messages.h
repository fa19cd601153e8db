#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "csrc/collective/links.h"

namespace downpour::collective {

// Messages that single ranks send one another: matched by sender and tag, in the order they were sent. Small ones travel at once,
// large ones when the receiver has said where to, so that nobody's memory fills with what was not asked for.
// Threads: that of the links' loop. Blocks: never. Owns: nothing but what waits for a receive; the memory of a send must stay
// unchanged, that of a receive untouched, until its `done` is called.
class Messages {
 public:
  static constexpr int kAnyRank = -1;
  // `source`: who sent it. `why`: nullptr, or what fail() was given; Error when the sizes differ (a small send is done before
  // anyone knows: the receiver alone hears it).
  using Sent = std::function<void(std::exception_ptr why)>;
  using Received = std::function<void(int source, std::exception_ptr why)>;

  explicit Messages(Links& links);

  void send(int to, int tag, Bytes bytes, Sent done);
  void receive(int from, int tag, MutableBytes bytes, Received done);

  // For whoever hears the links.
  void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk);
  void on_room();
  void leave(int rank);                      // fails what still needs it: what it has sent whole may be received
  void fail(const std::exception_ptr& why);  // all that is under way, and whatever comes after

  std::size_t under_way() const;  // sends and receives that are not done

 private:
  struct Announced {  // by another rank, not received yet
    std::uint64_t id = 0;
    std::int32_t tag = 0;
    std::uint64_t bytes = 0;
    bool is_small = false;
    std::vector<std::byte> content;  // of a small one
  };
  struct Wanted {  // a receive that has no message yet
    int from = kAnyRank;
    std::int32_t tag = 0;
    MutableBytes memory;
    Received done;
  };
  struct Arriving {  // a receive whose message is on its way
    MutableBytes memory;
    std::size_t filled = 0;
    Received done;
  };
  struct Leaving {  // a send that is not settled
    Bytes memory;
    bool is_small = false;
    bool is_wanted = false;
    std::size_t put = 0;
    Sent done;
  };
  struct Peer {
    std::uint64_t next_id = 0;
    int small_unreceived = 0;
    std::map<std::uint64_t, Leaving> leaving;
    std::map<std::uint64_t, Arriving> arriving;
    std::deque<Announced> announced;
    std::exception_ptr why_left;
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  bool match(int source, Announced& announced, Wanted& wanted);
  void deliver(int source, Announced& announced, Wanted wanted);
  void announce(int to, std::uint64_t id, std::int32_t tag, Bytes bytes, bool is_small);
  void on_announced(Link& link, Bytes body);
  void on_part(Link& link, Bytes body, Bytes bulk);
  void on_settled(Link& link, Bytes body);
  void put_parts(Link& link);
  void settle(int source, std::uint64_t id, std::string_view refusal);
  std::exception_ptr why_nothing_comes(int from);

  Links& links_;
  std::vector<Peer> peers_;
  std::deque<Wanted> wanted_;
  std::exception_ptr failed_;
};

}  // namespace downpour::collective
