#include "csrc/collective/messages.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::collective {
namespace {

constexpr std::size_t kSmallBytes = 4 * 1024;
constexpr int kMostSmallUnreceived = 64;  // to one rank; more wait at their sender until they are wanted

enum Type : std::uint16_t { kAnnounced = kFirstMessageType, kWanted, kPart, kSettled };

}  // namespace

Messages::Messages(Links& links) : links_(links), peers_(static_cast<std::size_t>(links.options().world)) {}

std::size_t Messages::under_way() const {
  std::size_t count = wanted_.size();
  for (const Peer& peer : peers_) {
    count += peer.leaving.size() + peer.arriving.size();
  }
  return count;
}

// ---- sends -------------------------------------------------------------------------------------------------------------

void Messages::send(int to, int tag, Bytes bytes, Sent done) {
  if (failed_ != nullptr) {
    done(failed_);
    return;
  }
  Peer& receiver = peer(to);
  if (receiver.why_left != nullptr) {
    done(receiver.why_left);
    return;
  }
  const std::uint64_t id = receiver.next_id++;
  const bool is_small = bytes.size() <= kSmallBytes && receiver.small_unreceived < kMostSmallUnreceived;
  receiver.small_unreceived += is_small ? 1 : 0;
  announce(to, id, tag, bytes, is_small);
  if (is_small) {
    done(nullptr);
    done = [](const std::exception_ptr&) {};
  }
  receiver.leaving.emplace(id, Leaving{bytes, is_small, false, 0, std::move(done)});
}

void Messages::announce(int to, std::uint64_t id, std::int32_t tag, Bytes bytes, bool is_small) {
  Writer body;
  body.put(id).put(tag).put(static_cast<std::uint64_t>(bytes.size())).put(static_cast<std::uint8_t>(is_small));
  if (is_small) {
    body.put_bytes(bytes);
  }
  links_.to(to).send(kAnnounced, body.bytes());
}

void Messages::put_parts(Link& link) {
  for (auto& [id, leaving] : peer(link.peer()).leaving) {
    while (leaving.is_wanted && leaving.put < leaving.memory.size() && link.has_room(Lane::kMessages)) {
      const Bytes part = leaving.memory.subspan(leaving.put)
                             .first(std::min<std::size_t>(kPieceBytes, leaving.memory.size() - leaving.put));
      link.put(kPart, std::as_bytes(std::span(&id, 1)), part);
      leaving.put += part.size();
    }
  }
}

void Messages::on_room() {
  for (Link* link : links_.all()) {
    put_parts(*link);
  }
}

// ---- receives ----------------------------------------------------------------------------------------------------------

bool Messages::match(int source, Announced& announced, Wanted& wanted) {
  return (wanted.from == kAnyRank || wanted.from == source) && wanted.tag == announced.tag;
}

void Messages::receive(int from, int tag, MutableBytes bytes, Received done) {
  if (failed_ != nullptr) {
    done(from, failed_);
    return;
  }
  Wanted wanted{from, tag, bytes, std::move(done)};
  for (int source = 0; source < static_cast<int>(peers_.size()); ++source) {
    auto& announced = peer(source).announced;
    const auto found =
        std::ranges::find_if(announced, [&](Announced& candidate) { return match(source, candidate, wanted); });
    if (found != announced.end()) {
      Announced first = std::move(*found);
      announced.erase(found);
      deliver(source, first, std::move(wanted));
      return;
    }
  }
  if (const auto why = why_nothing_comes(from)) {
    wanted.done(from, why);
    return;
  }
  wanted_.push_back(std::move(wanted));
}

void Messages::deliver(int source, Announced& announced, Wanted wanted) {
  if (announced.bytes != wanted.memory.size()) {
    const std::string text =
        concat("a message from rank ", source, " to rank ", links_.options().rank, " with tag ", announced.tag, " has ",
               announced.bytes, " bytes, the receiver expects ", wanted.memory.size());
    settle(source, announced.id, text);
    wanted.done(source, std::make_exception_ptr(Error(text)));
  } else if (announced.is_small || announced.bytes == 0) {
    std::ranges::copy(announced.content, wanted.memory.begin());
    settle(source, announced.id, "");
    wanted.done(source, nullptr);
  } else {
    peer(source).arriving.emplace(announced.id, Arriving{wanted.memory, 0, std::move(wanted.done)});
    links_.to(source).send(kWanted, std::as_bytes(std::span(&announced.id, 1)));
  }
}

// Tells the sender that it is over: received, or refused and why.
void Messages::settle(int source, std::uint64_t id, std::string_view refusal) {
  Writer body;
  body.put(id).put_string(refusal);
  links_.to(source).send(kSettled, body.bytes());
}

// ---- what other ranks say ------------------------------------------------------------------------------------------------

void Messages::on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) {
  switch (type) {
    case kAnnounced: on_announced(link, body); break;
    case kWanted: {
      Reader reader(body, "wanted message");
      const auto found = peer(link.peer()).leaving.find(reader.get<std::uint64_t>());
      DOWNPOUR_CHECK_AS(ProtocolError, found != peer(link.peer()).leaving.end(),
                        "a message is wanted that never was sent");
      DOWNPOUR_CHECK_AS(ProtocolError, !found->second.is_small, "a small message is wanted, which is there");
      found->second.is_wanted = true;
      put_parts(link);
      break;
    }
    case kPart: on_part(link, body, bulk); break;
    case kSettled: on_settled(link, body); break;
    default: throw ProtocolError(concat("message of unknown type ", type));
  }
}

void Messages::on_announced(Link& link, Bytes body) {
  Reader reader(body, "announced message");
  Announced announced;
  announced.id = reader.get<std::uint64_t>();
  announced.tag = reader.get<std::int32_t>();
  announced.bytes = reader.get<std::uint64_t>();
  announced.is_small = reader.get<std::uint8_t>() != 0;
  if (announced.is_small) {
    const Bytes content = reader.get_bytes();
    DOWNPOUR_CHECK_AS(ProtocolError, content.size() == announced.bytes, "a small message of ", content.size(),
                      " bytes, announced as ", announced.bytes);
    announced.content.assign(content.begin(), content.end());
  }
  const auto found =
      std::ranges::find_if(wanted_, [&](Wanted& wanted) { return match(link.peer(), announced, wanted); });
  if (found == wanted_.end()) {
    peer(link.peer()).announced.push_back(std::move(announced));
    return;
  }
  Wanted wanted = std::move(*found);
  wanted_.erase(found);
  deliver(link.peer(), announced, std::move(wanted));
}

void Messages::on_part(Link& link, Bytes body, Bytes bulk) {
  Reader reader(body, "part of a message");
  const auto id = reader.get<std::uint64_t>();
  auto& arriving = peer(link.peer()).arriving;
  const auto found = arriving.find(id);
  DOWNPOUR_CHECK_AS(ProtocolError, found != arriving.end(), "a part of message ", id, ", which nobody receives");
  Arriving& receive = found->second;
  DOWNPOUR_CHECK_AS(ProtocolError, bulk.size() <= receive.memory.size() - receive.filled, "message ", id,
                    " is longer than announced");
  std::memcpy(receive.memory.data() + receive.filled, bulk.data(), bulk.size());
  receive.filled += bulk.size();
  link.take_back();
  if (receive.filled == receive.memory.size()) {
    const Received done = std::move(receive.done);
    arriving.erase(found);
    settle(link.peer(), id, "");
    done(link.peer(), nullptr);
  }
}

void Messages::on_settled(Link& link, Bytes body) {
  Reader reader(body, "settled message");
  const auto id = reader.get<std::uint64_t>();
  const std::string refusal = reader.get_string();
  Peer& receiver = peer(link.peer());
  const auto found = receiver.leaving.find(id);
  DOWNPOUR_CHECK_AS(ProtocolError, found != receiver.leaving.end(), "message ", id,
                    " is settled, which never was sent");
  const Leaving leaving = std::move(found->second);
  receiver.leaving.erase(found);
  receiver.small_unreceived -= leaving.is_small ? 1 : 0;
  leaving.done(refusal.empty() ? nullptr : std::make_exception_ptr(Error(refusal)));
}

// From this rank, or from any: nullptr while something may.
std::exception_ptr Messages::why_nothing_comes(int from) {
  if (from != kAnyRank) {
    return peer(from).why_left;
  }
  std::exception_ptr why;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank != links_.options().rank && (why = peer(rank).why_left) == nullptr) {
      return nullptr;
    }
  }
  return why;
}

void Messages::leave(int rank) {
  const auto why = std::make_exception_ptr(PeerLostError(concat("rank ", rank, " has ended its group")));
  Peer& left = peer(rank);
  left.why_left = why;
  std::erase_if(left.announced, [](const Announced& announced) { return !announced.is_small; });
  for (const auto& [id, leaving] : std::exchange(left.leaving, {})) {
    leaving.done(why);
  }
  for (const auto& [id, arriving] : std::exchange(left.arriving, {})) {
    arriving.done(rank, why);
  }
  const auto is_lost = [&](const Wanted& wanted) { return why_nothing_comes(wanted.from) != nullptr; };
  std::deque<Wanted> lost;
  std::ranges::copy_if(wanted_, std::back_inserter(lost), is_lost);
  std::erase_if(wanted_, is_lost);
  for (const Wanted& wanted : lost) {
    wanted.done(wanted.from, why);
  }
}

void Messages::fail(const std::exception_ptr& why) {
  failed_ = why;
  for (Link* link : links_.all()) {
    link->keep_pieces();  // parts of messages that are still to be sent: their memory is the caller's again
  }
  for (const Wanted& wanted : std::exchange(wanted_, {})) {
    wanted.done(wanted.from, why);
  }
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer lost = std::exchange(peer(rank), {});
    for (const auto& [id, leaving] : lost.leaving) {
      leaving.done(why);
    }
    for (const auto& [id, arriving] : lost.arriving) {
      arriving.done(rank, why);
    }
  }
}

}  // namespace downpour::collective
