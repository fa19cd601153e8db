#include "csrc/ps/coordinator.h"

#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "csrc/base/error.h"

namespace downpour::ps {
namespace {

using transport::Connection;
using transport::Hello;
using transport::Role;

Target target_of(const Hello& hello) {
  return {hello.role == Role::kServer ? Target::Kind::kServer : Target::Kind::kWorker, hello.rank};
}

}  // namespace

struct Coordinator::State {
  State(transport::Loop& the_loop, std::uint64_t the_job, MembershipOptions options, std::vector<std::string> addresses,
        CoordinatorObserver& the_observer)
      : loop(the_loop),
        job(the_job),
        membership(options),
        server_addresses(std::move(addresses)),
        observer(the_observer) {}

  void schedule();
  void turn();
  std::optional<std::string> objection(const Hello& hello) const;
  void welcome(std::unique_ptr<Connection> connection);
  void retire(Target target, const Fence& fence);
  Actions handle(Target from, const transport::Message& message);
  Actions handle_worker(int worker, MessageType type, Bytes body);
  Actions handle_server(int server, MessageType type, Bytes body);
  Actions part(Target target);
  void drop(Target target, const std::string& reason);

  void perform(const Actions& actions);
  void send(Target to, MessageType type);
  template <typename Body>
  void send(Target to, MessageType type, const Body& body);
  void perform(const SendJoined& action);
  void perform(const SendSchema& action);
  void perform(const SendSchemaRefused& action) { send(action.to, MessageType::kSchemaRefused, Reason{action.reason}); }
  void perform(const SendFence& action) { send(action.to, MessageType::kFence, action.fence); }
  void perform(const SendMinimumClock& action) { send(action.to, MessageType::kMinimumClock, action.minimum); }
  void perform(const SendLeases& action) { send(action.to, MessageType::kLeases, action.leases); }
  void perform(const SendFinished& action) { send(action.to, MessageType::kFinished); }
  void perform(const AskDecided& action) { send(server_target(action.server), MessageType::kAskDecided); }
  void perform(const Disconnect& action);
  void perform(const ServerSilent& action) { observer.on_server_silent(action.server); }
  void perform(const Note& action) { observer.on_note(action.text); }

  transport::Loop& loop;
  const std::uint64_t job;
  Membership membership;
  const std::vector<std::string> server_addresses;
  CoordinatorObserver& observer;
  std::map<Target, std::unique_ptr<Connection>> connections;
  std::optional<std::string> aborted;
  transport::Loop::TimerId timer = 0;
  Writer writer;
};

Coordinator::Coordinator(transport::Loop& loop, std::uint64_t job, MembershipOptions options,
                         std::vector<std::string> server_addresses, CoordinatorObserver& observer) {
  DOWNPOUR_CHECK(server_addresses.size() == static_cast<std::size_t>(options.servers), "coordinator: expected ",
                 options.servers, " server addresses, found ", server_addresses.size());
  state_ = std::make_unique<State>(loop, job, options, std::move(server_addresses), observer);
  state_->schedule();
}

Coordinator::~Coordinator() { state_->loop.cancel(state_->timer); }

const Membership& Coordinator::membership() const { return state_->membership; }

void Coordinator::process_ended(Target member) {
  state_->connections.erase(member);
  state_->perform(state_->membership.leave(member, /*orderly=*/false, state_->loop.now()));
}

void Coordinator::gone(int worker) { state_->perform(state_->membership.gone(worker, state_->loop.now())); }

void Coordinator::abort(const std::string& reason) {
  state_->aborted = reason;
  for (const auto& [target, connection] : state_->connections) {
    state_->send(target, MessageType::kAbort, Reason{reason});
  }
}

transport::Admission Coordinator::admit(const Hello& hello, transport::Medium) {
  transport::Admission admission;
  const auto reason = state_->objection(hello);
  admission.accepted = !reason;
  admission.reason = reason.value_or("");
  admission.largest_body_bytes = kLargestBodyBytes;
  admission.receiver = this;
  return admission;
}

void Coordinator::on_connection(std::unique_ptr<Connection> connection) { state_->welcome(std::move(connection)); }

void Coordinator::on_message(Connection& connection, const transport::Message& message) {
  const Target from = target_of(connection.hello());
  state_->membership.heard(from, state_->loop.now());
  Actions actions;
  try {
    actions = state_->handle(from, message);
  } catch (const Error& error) {
    state_->drop(from, error.what());
    return;
  }
  state_->perform(actions);
}

void Coordinator::on_closed(Connection& connection, std::exception_ptr why) {
  const Target from = target_of(connection.hello());
  if (why != nullptr) {
    state_->observer.on_note(concat(text(from), ": ", text_of(why)));
  }
  state_->connections.erase(from);
  state_->perform(state_->membership.leave(from, /*orderly=*/why == nullptr, state_->loop.now()));
}

void Coordinator::State::schedule() {
  timer = loop.call_at(loop.now() + membership.options().heartbeat, [this] { turn(); });
}

void Coordinator::State::turn() {
  schedule();
  for (const auto& [target, connection] : connections) {
    membership.heard(target, connection->last_heard());
  }
  perform(membership.check(loop.now()));
}

std::optional<std::string> Coordinator::State::objection(const Hello& hello) const {
  if (hello.role == Role::kRank) {
    return "a coordinator has workers and servers, not ranks of a group";
  }
  if (hello.job != job) {
    return concat("this coordinator runs job ", std::hex, job, ", not ", hello.job);
  }
  if (aborted) {
    return concat("the job was aborted: ", *aborted);
  }
  try {
    return membership.refusal(target_of(hello), decode<JoinJob>(hello.body).pid);
  } catch (const ProtocolError& error) {
    return error.what();
  }
}

// Two newcomers may have been admitted for one place before either connection was handed over.
void Coordinator::State::welcome(std::unique_ptr<Connection> connection) {
  const Target target = target_of(connection->hello());
  const std::int64_t pid = decode<JoinJob>(connection->hello().body).pid;
  if (const auto reason = membership.refusal(target, pid)) {
    writer.clear();
    encode(Reason{*reason}, writer);
    connection->send(static_cast<std::uint16_t>(MessageType::kAbort), writer.bytes());
    return;
  }
  retire(target, {target.index, membership.incarnation(target.index) + 1});
  // Silence is membership's to judge, not the connection's.
  connection->start_heartbeat(membership.options().heartbeat, kNever, kNever);
  connections[target] = std::move(connection);
  perform(membership.join(target, pid, loop.now()));
}

// The former life's connection, where the same process joins again before it ended.
void Coordinator::State::retire(Target target, const Fence& fence) {
  if (target.kind == Target::Kind::kWorker) {
    send(target, MessageType::kFence, fence);
  }
  connections.erase(target);
}

Actions Coordinator::State::handle(Target from, const transport::Message& message) {
  const auto type = static_cast<MessageType>(message.type);
  return from.kind == Target::Kind::kWorker ? handle_worker(from.index, type, message.body)
                                            : handle_server(from.index, type, message.body);
}

Actions Coordinator::State::handle_worker(int worker, MessageType type, Bytes body) {
  switch (type) {
    case MessageType::kBeat: {
      const auto progress = decode<Progress>(body);
      membership.beat(worker, progress);
      observer.on_progress(worker, progress);
      return {};
    }
    case MessageType::kOfferSchema: return membership.offer(worker, decode<Agreement>(body));
    case MessageType::kTick: return membership.tick(worker, decode<Tick>(body).step);
    case MessageType::kAskLeases: return membership.ask_leases(worker, decode<AskLeases>(body).count);
    case MessageType::kLeasesDone: return membership.leases_done(worker, decode<LeasesDone>(body).leases);
    case MessageType::kFinish: return membership.finish(worker);
    default:
      throw ProtocolError(concat("a worker may not send message type ", static_cast<int>(type), " to the coordinator"));
  }
}

Actions Coordinator::State::handle_server(int server, MessageType type, Bytes body) {
  switch (type) {
    case MessageType::kServerReady: return membership.server_ready(server, decode<ServerReady>(body));
    case MessageType::kServerStatus: {
      auto status = decode<ServerStatus>(body);
      status.server = server;
      observer.on_server_status(status);
      return status.last != 0 ? part(server_target(server)) : Actions{};
    }
    default:
      throw ProtocolError(concat("a server may not send message type ", static_cast<int>(type), " to the coordinator"));
  }
}

// It has said its last words, and ends when it hears that they have come.
Actions Coordinator::State::part(Target target) {
  connections.erase(target);
  return membership.leave(target, /*orderly=*/true, loop.now());
}

void Coordinator::State::drop(Target target, const std::string& reason) {
  observer.on_note(concat(text(target), " is disconnected: ", reason));
  perform(Disconnect{target, reason});
  perform(membership.leave(target, /*orderly=*/false, loop.now()));
}

void Coordinator::State::perform(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit([this](const auto& it) { perform(it); }, action);
  }
}

void Coordinator::State::send(Target to, MessageType type) {
  if (const auto found = connections.find(to); found != connections.end()) {
    found->second->send(static_cast<std::uint16_t>(type), {});
  }
}

template <typename Body>
void Coordinator::State::send(Target to, MessageType type, const Body& body) {
  if (const auto found = connections.find(to); found != connections.end()) {
    writer.clear();
    encode(body, writer);
    found->second->send(static_cast<std::uint16_t>(type), writer.bytes());
  }
}

void Coordinator::State::perform(const SendJoined& action) {
  Joined joined = action.joined;
  joined.servers = server_addresses;
  send(action.to, MessageType::kJoined, joined);
}

void Coordinator::State::perform(const SendSchema& action) {
  if (action.to.kind == Target::Kind::kServer) {
    send(action.to, MessageType::kSchema, *membership.agreement());
  } else {
    send(action.to, MessageType::kSchema);
  }
}

// The reason is for a peer that is at fault; one that was fenced has heard kFence before and looks no further.
void Coordinator::State::perform(const Disconnect& action) {
  send(action.to, MessageType::kAbort, Reason{action.reason});
  connections.erase(action.to);
}

}  // namespace downpour::ps
