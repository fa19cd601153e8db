#include "csrc/ps/shard_link.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/transport/shm.h"

namespace downpour::ps {
namespace {

constexpr Duration kAttemptDeadline = std::chrono::seconds(10);
constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::seconds(1);

std::string what(const std::exception_ptr& why) { return why == nullptr ? "the server said goodbye" : text_of(why); }

// What the caller must hear of a handshake that failed; nullptr: nothing, since another attempt may do better.
std::exception_ptr refusal_of(const std::exception_ptr& why) {
  try {
    if (why != nullptr) {
      std::rethrow_exception(why);
    }
  } catch (const ProtocolError& error) {
    const std::string_view text = error.what();
    if (text.find(kFencedPrefix) != std::string_view::npos) {
      return std::make_exception_ptr(FencedError(error.what()));
    }
    return text.find(transport::kLaterPrefix) != std::string_view::npos ? nullptr : why;
  } catch (const std::exception&) {
  }
  return nullptr;
}

std::int64_t whole_lines(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::clamp<std::uint64_t>(bytes / 64, 1, 1u << 20) * 64);
}

}  // namespace

ShardLink::ShardLink(const Terms& terms, Connector& connector, PushLedger& ledger, ClientCounters& counters)
    : terms_(terms),
      connector_(connector),
      ledger_(ledger),
      counters_(counters),
      log_(terms.layout, terms.schema.groups),
      sender_(terms.layout, log_, whole_lines(terms.options.fragment_bytes)),
      jitter_(terms.options.job ^ (static_cast<std::uint64_t>(terms.options.rank) << 32) ^
              static_cast<std::uint64_t>(terms.shard)) {}

ShardLink::~ShardLink() { connection_.reset(); }

void ShardLink::advance() {
  if (phase_ == Phase::kDown && connector_.now() >= retry_at_) {
    connect();
  }
  pump();
}

void ShardLink::connect() {
  // A process may make more than one client of one incarnation; the later one wins.
  attempt_ = std::max(attempt_ + 1, static_cast<std::uint64_t>(connector_.now().time_since_epoch().count()));
  Writer body;
  encode(JoinShard{terms_.shard, terms_.wanted_slots, attempt_}, body);
  transport::Hello hello;
  hello.job = terms_.options.job;
  hello.role = transport::Role::kWorker;
  hello.rank = terms_.options.rank;
  hello.incarnation = terms_.options.incarnation;
  hello.schema = terms_.schema_hash;
  hello.body = body.take();
  transport::ConnectOptions options;
  options.peer = concat("shard ", terms_.shard);
  options.deadline = std::min(kAttemptDeadline, terms_.options.call_deadline);
  options.largest_body_bytes = largest_body_bytes(terms_.schema, terms_.layout);
  // A slot is not written again while its push is in flight, on a connection before this one too, unless it was not ended;
  // slots and the offer lie in mappings of their own.
  options.lasting_bulk = true;
  phase_ = Phase::kConnecting;
  try {
    connection_ = connector_.connect(terms_.shard, hello, *this, options);
  } catch (const AuthError&) {
    phase_ = Phase::kDown;
    throw;
  } catch (const CommError&) {
    fail(std::current_exception());
  }
}

void ShardLink::start_over() {
  fail(std::make_exception_ptr(PeerLostError("a new incarnation begins")));
  retry_at_ = TimePoint::min();
  refusal_ = nullptr;
}

std::exception_ptr ShardLink::take_failure() { return std::exchange(refusal_, nullptr); }

std::string ShardLink::text() const {
  const std::string where = connection_ ? " (" + connection_->peer() + ")" : "";
  const char* const state =
      phase_ == Phase::kReady ? (initialised_ ? "" : ", which has no initial values yet") : ", which is not connected";
  return concat("shard ", terms_.shard, where, state, trouble_.empty() || is_ready() ? "" : "; last: " + trouble_);
}

std::string ShardLink::medium() const { return is_ready() ? std::string(name(connection_->medium())) : "none"; }

// Pause before the next attempt: none at first, then longer and longer, never two workers alike.
void ShardLink::back_off() {
  Duration pause{0};
  if (failures_ > 0) {
    pause = std::min(kLongestPause, kFirstPause * (std::int64_t{1} << std::min(failures_ - 1, 10)));
    pause = pause / 2 + Duration(static_cast<std::int64_t>(jitter_.below(static_cast<std::uint64_t>(pause.count()))));
  }
  ++failures_;
  retry_at_ = connector_.now() + pause;
}

void ShardLink::fail(const std::exception_ptr& why) {
  if (phase_ == Phase::kReady) {
    ++counters_.reconnects;
  }
  trouble_ = what(why);
  phase_ = Phase::kDown;
  initialised_ = false;
  pull_sent_ = complete_ = save_sent_ = false;
  arrived_ = adopted_ = offered_bytes_ = 0;
  connection_.reset();
  back_off();
}

void ShardLink::on_closed(transport::Connection& connection, std::exception_ptr why) {
  (void)connection;
  if (phase_ == Phase::kConnecting) {
    refusal_ = refusal_of(why);
    failures_ = std::max(failures_, refusal_ != nullptr ? 1 : 0);  // the caller hears it before the next attempt
  } else if (phase_ == Phase::kReady) {
    log_warning("worker ", terms_.options.rank, ": lost shard ", terms_.shard, ": ", what(why));
  }
  fail(why);
}

void ShardLink::on_open(transport::Connection& connection, const transport::Welcome& welcome) try {
  (void)connection;
  settle_in(decode<ShardWelcome>(welcome.body));
  phase_ = Phase::kGreeted;
} catch (const CommError& error) {
  refusal_ = std::make_exception_ptr(ProtocolError(concat(connection.peer(), ": ", error.what())));
  fail(refusal_);
}

// Over shared memory the slots are the server's staging buffers themselves, and nothing is gained by pieces, each of which would
// wake the server; elsewhere they are memory of our own.
void ShardLink::settle_in(const ShardWelcome& welcome) {
  const auto buffer_bytes = static_cast<std::uint64_t>(terms_.layout.buffer_bytes);
  DOWNPOUR_CHECK_AS(ProtocolError, welcome.buffer_bytes == buffer_bytes, "another partition: ", welcome.buffer_bytes,
                    " bytes there, ", buffer_bytes, " here");
  DOWNPOUR_CHECK_AS(ProtocolError, welcome.slots > 0 && welcome.slots <= std::max(terms_.wanted_slots, 1u), "granted ",
                    welcome.slots, " slots of ", terms_.wanted_slots, " wanted");
  DOWNPOUR_CHECK_AS(ProtocolError,
                    connection_->outgoing_window_bytes() == (std::uint64_t{welcome.slots} + 1) * buffer_bytes &&
                        connection_->incoming().size() == buffer_bytes,
                    "windows of ", connection_->outgoing_window_bytes(), " and ", connection_->incoming().size(),
                    " bytes for ", welcome.slots, " slots and initial values of ", buffer_bytes, " bytes");
  welcome_ = welcome;
  const std::uint64_t held = log_.next() - log_.first();
  in_place_ = connection_->medium() == transport::Medium::kSharedMemory && held <= welcome.slots;
  if (in_place_) {
    log_.move_to(connection_->outgoing(), welcome.slots, transport::segment_of(*connection_));
    heap_ = {};
  } else if (!log_on_heap_) {
    transport::Window heap(terms_.wanted_slots * buffer_bytes);
    log_.move_to(heap.bytes(), terms_.wanted_slots, nullptr);
    heap_ = std::move(heap);
  }
  log_on_heap_ = !in_place_;
  const std::int64_t piece = whole_lines(terms_.options.fragment_bytes);
  sender_.set_fragment_bytes(in_place_ ? std::max(piece, terms_.layout.buffer_bytes) : piece);
}

void ShardLink::on_message(transport::Connection& connection, const transport::Message& message) {
  (void)connection;
  switch (static_cast<MessageType>(message.type)) {
    case MessageType::kState: return on_state(decode<ShardState>(message.body));
    case MessageType::kAck: return on_ack(decode<Ack>(message.body));
    case MessageType::kValues: return on_values(message);
    case MessageType::kDurable: return on_durable(decode<Durable>(message.body));
    case MessageType::kNotSaved: not_saved_ = saving_; return;
    case MessageType::kInitialised: return on_initialised();
    default: throw ProtocolError(concat("a message of type ", message.type, " is not for a worker"));
  }
}

void ShardLink::on_state(const ShardState& state) {
  DOWNPOUR_CHECK_AS(ProtocolError, phase_ == Phase::kGreeted, "the state of the shard comes twice");
  phase_ = Phase::kReady;
  log_.connection_lost();  // now the shard reads no connection before this one any more: slots may be written again
  known_ = state.next_sequence;
  durable_below_ = 0;
  if (state.initialised != 0) {
    on_initialised();
  } else if (has_offer_) {
    offering_ = true;  // again: it has lost all
    pump();
  }
}

void ShardLink::on_initialised() {
  DOWNPOUR_CHECK_AS(ProtocolError, is_ready(), "initial values before the state of the shard");
  if (!std::exchange(initialised_, true)) {
    resume();
  }
}

std::uint64_t ShardLink::first_undecided() {
  std::uint64_t sequence = log_.first();
  while (sequence < log_.next() && log_.find(sequence)->verdict) {
    ++sequence;
  }
  return sequence;
}

// What the server lacks is sent again, and what it never told us about is asked for; what we no longer have is lost.
void ShardLink::resume() {
  const bool has_open = !log_.is_empty() && !log_.newest().ended;
  const std::uint64_t ended = log_.next() - (has_open ? 1 : 0);
  if (known_ > ended) {
    for (std::uint64_t sequence = first_undecided(); sequence < ended; ++sequence) {
      ledger_.lost(log_.find(sequence)->push);
      ++counters_.lost;
    }
    log_.renumber(known_);
  }
  const std::uint64_t first_new = std::max(known_, log_.first());
  if (first_new > known_) {
    counters_.lost += losses_.declare(known_, first_new);
    log_warning("worker ", terms_.options.rank, ": shard ", terms_.shard, " was restored from before push ", first_new,
                ": ", first_new - known_, " pushes cannot be replayed and are lost");
  }
  send_resume(first_new);
  answered_ = std::min(first_new, first_undecided());
  sender_.restart(answered_, known_);
  pump();
}

void ShardLink::on_ack(const Ack& ack) {
  ReplayRecord* const record = log_.find(ack.sequence);
  DOWNPOUR_CHECK_AS(ProtocolError, ack.sequence == answered_ && record != nullptr && record->ended && record->in_flight,
                    "an acknowledgement of push ", ack.sequence, ", expected one of push ", answered_);
  ++answered_;
  failures_ = 0;
  record->in_flight = false;
  if (!record->verdict) {
    record->verdict = ack.result.verdict;
    ledger_.decided(record->push, ack.result);
  }
  log_.release_below(welcome_.keeps_snapshots != 0 ? std::min(durable_below_, answered_) : answered_);
  pump();
}

void ShardLink::on_durable(const Durable& durable) {
  durable_below_ = durable.below;
  log_.release_below(std::min(durable_below_, answered_));
  saving_ = saving_ && !is_saved();
  losses_.forget_below(durable_below_);
  if (connection_->idle()) {
    offer_ = {};
    has_offer_ = offering_ = false;
  }
}

void ShardLink::on_values(const transport::Message& message) {
  const auto values = decode<Values>(message.body);
  if (!pulling_ || values.request != request_ || complete_) {
    return;  // of a pull that was given up
  }
  const std::uint64_t end = arrived_ + message.bulk.size();
  DOWNPOUR_CHECK_AS(ProtocolError,
                    (message.bulk.empty() || message.bulk_offset == arrived_) &&
                        (values.last != 0) == (end == connection_->incoming().size()) &&
                        (arrived_ == 0 || values.version == pulled_),
                    "values from byte ", message.bulk_offset, " on, expected from byte ", arrived_);
  failures_ = 0;
  pulled_ = values.version;
  arrived_ = end;
  complete_ = values.last != 0;
}

}  // namespace downpour::ps
