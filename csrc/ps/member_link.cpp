#include "csrc/ps/member_link.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/stacks.h"
#include "csrc/ps/coordinator.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {
namespace {

using Phase = MemberBoard::Phase;

// The program's signals are for the program's own threads; the one for stacks is everybody's.
void block_signals() {
  sigset_t set;
  ::sigfillset(&set);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    ::sigdelset(&set, fault);
  }
  if (stacks_are_printed_on_signal()) {
    ::sigdelset(&set, SIGUSR2);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

template <typename ErrorType>
std::function<void()> raiser(std::string text) {
  return [text = std::move(text)] { throw ErrorType(text); };
}

}  // namespace

MemberLink::MemberLink(const MemberOptions& options)
    : options_(options),
      name_(concat("worker ", options.rank)),
      loop_(clock_),
      stall_(options.heartbeat, options.silence, clock_.now()) {
  DOWNPOUR_CHECK(options.heartbeat > Duration::zero() && options.silence > options.heartbeat &&
                     options.call_deadline > Duration::zero(),
                 name_, ": expected 0 < heartbeat < silence and a call deadline above 0, found ",
                 seconds(options.heartbeat), " s, ", seconds(options.silence), " s and ",
                 seconds(options.call_deadline), " s");
  board_.turned = woke_ = loop_.now();
  thread_ = std::thread([this] { run(); });
}

MemberLink::~MemberLink() {
  loop_.post([this] { stopping_ = true; });
  thread_.join();
}

void MemberLink::join() {
  loop_.post([this] { connect(); });
}

void MemberLink::flush() {
  loop_.post([this] { send_waiting(); });
}

void MemberLink::run() {
  block_signals();
  turn();
  try {
    while (!stopping_) {
      loop_.run_once(loop_.now() + std::chrono::seconds(1));
    }
  } catch (const std::exception& error) {
    fail(raiser<InternalError>(concat(name_, ": the thread of its link to the coordinator ended: ", error.what())));
  }
  say_last_words();
  connection_.reset();
}

// What was reported since the last beat belongs to the summary too.
void MemberLink::say_last_words() {
  const std::lock_guard lock(board_.mutex);
  if (board_.phase == Phase::kLive && connection_ != nullptr) {
    send(MessageType::kBeat, board_.progress);
  }
}

void MemberLink::connect() {
  transport::Hello hello;
  hello.job = options_.job;
  hello.role = transport::Role::kWorker;
  hello.rank = options_.rank;
  writer_.clear();
  encode(JoinJob{::getpid()}, writer_);
  hello.body.assign(writer_.bytes().begin(), writer_.bytes().end());
  transport::ConnectOptions options;
  options.peer = "the coordinator";
  options.deadline = options_.call_deadline;
  options.largest_body_bytes = Coordinator::kLargestBodyBytes;
  connection_.reset();
  try {
    if (!endpoint_) {
      endpoint_ = transport::look_up(transport::parse_address(options_.coordinator), transport::exposure_of(options_));
    }
    connection_ = transport::connect_tcp(loop_, *endpoint_, hello, *this, transport::SharedMemory::kNever, options);
  } catch (const Error&) {
    fail_as(std::current_exception(), concat(name_, " cannot join the job: "));
  }
}

// ---- every heartbeat ----------------------------------------------------------------------------------------------

void MemberLink::turn() {
  const TimePoint now = loop_.now();
  loop_.call_at(now + options_.heartbeat, [this] { turn(); });
  notice_own_stall(now);
  send_waiting();
  bool live = false;
  {
    const std::lock_guard lock(board_.mutex);
    live = board_.phase == Phase::kLive;
    // What is queued proves nothing until it moves; beats behind it would only pile up.
    if (live && connection_->idle()) {
      send(MessageType::kBeat, board_.progress);
    }
  }
  board_.changed.notify_all();
  if (live) {
    look_for_silence(now);
  }
}

void MemberLink::notice_own_stall(TimePoint now) {
  const std::lock_guard lock(board_.mutex);
  board_.turned = now;
  if (const Duration missed = stall_.look(now); missed > Duration::zero()) {
    board_.stood_still += missed;
    board_.others_progressed = std::min(board_.others_progressed + missed, now);
    woke_ = now;
  }
}

void MemberLink::look_for_silence(TimePoint now) {
  const Duration silent = now - std::max(connection_->last_heard(), woke_);
  if (silent >= options_.silence) {
    fail(raiser<PeerLostError>(concat(name_, ": the launcher is gone: nothing heard of the coordinator at ",
                                      options_.coordinator, " for ", seconds(silent), " s")));
    connection_.reset();
    return;
  }
  const bool quiet = silent >= options_.silence / 5;
  if (quiet && !warned_) {
    log_warning(name_, ": the coordinator at ", options_.coordinator, " has not been heard for ", seconds(silent),
                " s; it is given up after ", seconds(options_.silence), " s");
  }
  warned_ = quiet;
}

// ---- sending ------------------------------------------------------------------------------------------------------

void MemberLink::send_waiting() {
  const std::lock_guard lock(board_.mutex);
  if (board_.phase != Phase::kLive) {
    return;
  }
  if (board_.offer) {
    send_encoded(MessageType::kOfferSchema, *std::exchange(board_.offer, std::nullopt));
  }
  if (std::exchange(board_.tick_waits, false)) {
    send(MessageType::kTick, Tick{board_.clock_of(board_.step)});
  }
  // Before any question: its answer may depend on them.
  if (!board_.done.leases.empty()) {
    std::swap(sending_, board_.done);
    send(MessageType::kLeasesDone, sending_);
    sending_.leases.clear();
  }
  if (board_.lease_count > 0) {
    send(MessageType::kAskLeases, AskLeases{std::exchange(board_.lease_count, 0)});
  }
  if (std::exchange(board_.ask_finish, false)) {
    send(MessageType::kBeat, board_.progress);
    send_encoded(MessageType::kFinish, {});
  }
}

template <typename Body>
void MemberLink::send(MessageType type, const Body& body) {
  writer_.clear();
  encode(body, writer_);
  send_encoded(type, writer_.bytes());
}

void MemberLink::send_encoded(MessageType type, Bytes body) {
  connection_->send(static_cast<std::uint16_t>(type), body);
}

// ---- hearing ------------------------------------------------------------------------------------------------------

void MemberLink::on_open(transport::Connection&, const transport::Welcome&) {}

void MemberLink::on_message(transport::Connection& connection, const transport::Message& message) {
  {
    const std::lock_guard lock(board_.mutex);
    hear(message);
    if (board_.phase == Phase::kFenced || board_.phase == Phase::kFailed) {
      connection.close();
    }
  }
  board_.changed.notify_all();
}

void MemberLink::hear(const transport::Message& message) {
  switch (const auto type = static_cast<MessageType>(message.type); type) {
    case MessageType::kJoined: board_.joined = decode<Joined>(message.body); return;
    case MessageType::kSchema:
      board_.agreed = true;
      board_.begin_at_least(board_.minimum.clock);  // the others may have made steps while a warm start held us back
      return;
    case MessageType::kSchemaRefused: board_.refused = decode<Reason>(message.body).text; return;
    case MessageType::kMinimumClock: hear_minimum(decode<MinimumClock>(message.body)); return;
    case MessageType::kLeases: board_.leases = decode<Leases>(message.body); return;
    case MessageType::kFinished: board_.finished = true; return;
    case MessageType::kFence: hear_fence(decode<Fence>(message.body)); return;
    case MessageType::kAbort:
      board_.phase = Phase::kFailed;
      board_.raise = raiser<Error>(concat(name_, ": ", decode<Reason>(message.body).text));
      return;
    default:
      throw ProtocolError(
          concat("message type ", static_cast<int>(type), " is not one that a coordinator sends to a worker"));
  }
}

void MemberLink::hear_minimum(const MinimumClock& minimum) {
  board_.minimum = minimum;
  board_.others_progressed = loop_.now() - Duration(minimum.stalled_nanoseconds);
  if (board_.phase == Phase::kJoining) {
    board_.begin_at(minimum.clock);
    board_.phase = Phase::kLive;
  }
}

void MemberLink::hear_fence(const Fence& fence) {
  if (fence.worker == options_.rank && fence.below_incarnation > board_.joined.incarnation) {
    board_.phase = Phase::kFenced;
  }
}

void MemberLink::on_closed(transport::Connection&, std::exception_ptr why) {
  const bool joining = [this] {
    const std::lock_guard lock(board_.mutex);
    return board_.phase == Phase::kJoining;
  }();
  if (joining && why != nullptr) {
    fail_as(why, concat(name_, " cannot join the job: "));
  } else if (why == nullptr) {
    fail(raiser<PeerLostError>(
        concat(name_, ": the launcher is gone: the coordinator at ", options_.coordinator, " said goodbye")));
  } else {
    fail_as(why, concat(name_, ": the launcher is gone: "));
  }
  connection_.reset();
}

void MemberLink::fail(std::function<void()> raise) {
  {
    const std::lock_guard lock(board_.mutex);
    if (board_.phase != Phase::kFailed && board_.phase != Phase::kFenced) {
      board_.phase = Phase::kFailed;
      board_.raise = std::move(raise);
    }
  }
  board_.changed.notify_all();
}

void MemberLink::fail_as(const std::exception_ptr& why, const std::string& prefix) {
  try {
    std::rethrow_exception(why);
  } catch (const TimeoutError& error) {
    fail(raiser<TimeoutError>(prefix + error.what()));
  } catch (const ProtocolError& error) {
    fail(raiser<ProtocolError>(prefix + error.what()));
  } catch (const AuthError& error) {
    fail(raiser<AuthError>(prefix + error.what()));
  } catch (const CommError& error) {
    fail(raiser<PeerLostError>(prefix + error.what()));
  } catch (const std::exception& error) {
    fail(raiser<Error>(prefix + error.what()));
  }
}

}  // namespace downpour::ps
