#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/ps/shard_server_state.h"

namespace downpour::ps {
namespace {

// A worker that does not read its answers must not make us keep them without end.
constexpr std::uint32_t kMostUnread = 65536;
constexpr std::uint64_t kAnswerBytes = 512 * 1024;
constexpr std::uint32_t kCreditsAtOnce = 8;

void check_no_bulk(const transport::Message& message) {
  DOWNPOUR_CHECK_AS(ProtocolError, message.bulk.empty(), "a message of type ", message.type, " came with ",
                    message.bulk.size(), " bulk bytes");
}

}  // namespace

void ShardServer::State::handle(WorkerLink& link, const transport::Message& message) {
  DOWNPOUR_CHECK_AS(ProtocolError, link.unread <= kMostUnread, "worker ", link.worker, " left ", link.unread,
                    " messages unread");
  switch (static_cast<MessageType>(message.type)) {
    case MessageType::kPush: return on_push(link, message);
    case MessageType::kInitialise: return on_initialise(link, message);
    case MessageType::kResume: check_no_bulk(message); return on_resume(link, decode<Resume>(message.body));
    case MessageType::kSave: check_no_bulk(message); return on_save(link);
    case MessageType::kPull: check_no_bulk(message); return on_pull(link, decode<Pull>(message.body).request);
    default: throw ProtocolError(concat("a message of type ", message.type, " is not for a shard"));
  }
}

void ShardServer::State::on_resume(WorkerLink& link, const Resume& resume) {
  link.assembly.discard();
  const std::uint64_t next = shard.next_sequence(link.worker);
  const std::uint64_t lost = shard.skip_to(link.worker, resume.sequence);
  if (lost > 0) {
    log_warning("shard ", index, ": worker ", link.worker, " could not replay its pushes ", next, " to ",
                resume.sequence - 1, ": ", lost, " lost");
    schedule.changed();
  }
}

void ShardServer::State::on_initialise(WorkerLink& link, const transport::Message& message) {
  const auto offer = decode<Initialise>(message.body);
  const std::uint64_t place = link.slots * buffer_bytes;
  const auto end = static_cast<std::uint64_t>(link.initialised_bytes);
  DOWNPOUR_CHECK_AS(ProtocolError, !link.assembly.is_open(), "initial values in the midst of a push");
  DOWNPOUR_CHECK_AS(
      ProtocolError,
      (message.bulk.empty() || message.bulk_offset == place + end) && message.bulk.size() <= buffer_bytes - end,
      "initial values: ", message.bulk.size(), " bytes at byte ", message.bulk_offset, ", expected byte ", place + end,
      ", ", buffer_bytes - end, " of ", buffer_bytes, " bytes to come");
  link.initialised_bytes += static_cast<std::int64_t>(message.bulk.size());
  give_credit_back(link, message, offer.last != 0);
  if (offer.last == 0) {
    return;
  }
  DOWNPOUR_CHECK_AS(ProtocolError, static_cast<std::uint64_t>(link.initialised_bytes) == buffer_bytes,
                    "initial values: ", link.initialised_bytes, " bytes came, expected ", buffer_bytes);
  DOWNPOUR_CHECK_AS(ProtocolError,
                    std::all_of(offer.accumulators.begin(), offer.accumulators.end(),
                                [](double value) { return std::isfinite(value); }),
                    "initial values: an accumulator is not finite");
  link.initialised_bytes = 0;
  if (shard.initialise(link.connection->incoming().subspan(place, buffer_bytes), offer.accumulators)) {
    on_first_values();
  }
}

void ShardServer::State::on_first_values() {
  schedule.hurry();
  consider_snapshot();
  for (const auto& link : links) {
    out.clear();
    send(*link, MessageType::kInitialised);
    if (const auto request = std::exchange(link->parked_pull, std::nullopt)) {
      answer(*link, *request);
    }
  }
}

// [ps 4/7]
void ShardServer::State::on_push(WorkerLink& link, const transport::Message& message) {
  decode_into(message.body, fragment);
  fragment.header.worker = link.worker;
  if (fragment.sequence < shard.next_sequence(link.worker)) {
    DOWNPOUR_CHECK_AS(ProtocolError, !link.assembly.is_open(), "push ", fragment.sequence,
                      " again in the midst of another");
    if (fragment.last != 0) {
      decide(link, {});
    }
  } else {
    on_fragment(link, message);
  }
  give_credit_back(link, message, fragment.last != 0);
}

void ShardServer::State::on_fragment(WorkerLink& link, const transport::Message& message) {
  DOWNPOUR_CHECK_AS(ProtocolError, shard.initialised(), "push ", fragment.sequence, " before the initial values");
  DOWNPOUR_CHECK_AS(ProtocolError, fragment.sequence == shard.next_sequence(link.worker) && fragment.slot < link.slots,
                    "push ", fragment.sequence, " in slot ", fragment.slot, ", expected push ",
                    shard.next_sequence(link.worker), " in one of ", link.slots, " slots");
  if (!link.assembly.is_open()) {
    link.assembly.begin(fragment.sequence, fragment.slot);
  }
  link.assembly.check_same(fragment.sequence, fragment.slot);
  const std::uint64_t slot_begin = fragment.slot * buffer_bytes;
  if (!message.bulk.empty()) {
    DOWNPOUR_CHECK_AS(ProtocolError,
                      message.bulk_offset >= slot_begin && message.bulk_offset - slot_begin <= buffer_bytes &&
                          message.bulk.size() <= buffer_bytes - (message.bulk_offset - slot_begin),
                      "push ", fragment.sequence, ": ", message.bulk.size(), " bytes at byte ", message.bulk_offset,
                      " lie outside of slot ", fragment.slot);
    link.assembly.add(message.bulk_offset - slot_begin, message.bulk.size());
  }
  if (fragment.last != 0) {
    link.assembly.finish(fragment.header.present);
    decide(link, link.connection->incoming().subspan(slot_begin, buffer_bytes));
  }
}

// [ps 4/7], [ps 5/7]
void ShardServer::State::decide(WorkerLink& link, Bytes gradient) {
  for (const auto& reader : links) {
    reader->connection->keep_bulk();
  }
  Ack ack;
  ack.sequence = fragment.sequence;
  ack.result = shard.push(fragment.header, gradient);
  out.clear();
  encode(ack, out);
  send(link, MessageType::kAck);
  if (!ack.result.repeated) {
    note_push(link);
  }
}

void ShardServer::State::on_pull(WorkerLink& link, std::uint64_t request) {
  if (shard.initialised()) {
    answer(link, request);
  } else {
    link.parked_pull = request;  // a worker waits for one at a time, so the newest is the only one
  }
}

// [ps 6/7] All fragments in one go: no push comes between them, so that they are of one version. What is not sent when the next
// push comes is copied then.
void ShardServer::State::answer(WorkerLink& link, std::uint64_t request) {
  Values values{request, shard.version(), 0};
  std::uint64_t offset = 0;
  do {
    const std::uint64_t size = std::min(kAnswerBytes, buffer_bytes - offset);
    values.last = offset + size == buffer_bytes ? 1 : 0;
    out.clear();
    encode(values, out);
    put(link, MessageType::kValues, shard.values().subspan(offset, size), offset);
    offset += size;
  } while (values.last == 0);
  shard.counters().pulled_bytes += value_bytes;
}

void ShardServer::State::give_credit_back(WorkerLink& link, const transport::Message& message, bool at_once) {
  link.ungranted += message.takes_credit ? 1 : 0;
  if (link.ungranted > 0 && (at_once || link.ungranted >= kCreditsAtOnce)) {
    link.connection->grant(std::exchange(link.ungranted, 0));
  }
}

}  // namespace downpour::ps
