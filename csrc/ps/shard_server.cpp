#include <algorithm>

#include "csrc/base/log.h"
#include "csrc/ps/shard_server_state.h"

namespace downpour::ps {
namespace {

constexpr std::uint32_t kCredits = 64;
// Without a replay to feed, more only spread a push over more memory than the caches hold.
constexpr std::uint32_t kStagingSlots = 4;
constexpr std::uint64_t kLargestSegmentBytes = 1ull << 30;
constexpr Duration kSpin = std::chrono::microseconds(50);

std::optional<std::uint64_t> staleness_bound(const Agreement& agreement) {
  return agreement.max_staleness < 0 ? std::nullopt
                                     : std::optional(static_cast<std::uint64_t>(agreement.max_staleness));
}

ShardLayout layout_of(const Schema& schema, int shard, int count) {
  DOWNPOUR_CHECK(shard >= 0 && shard < count, "shard ", shard, ", expected 0 to ", count - 1);
  return std::move(partition(schema, count)[static_cast<std::size_t>(shard)]);
}

LifeTable::Life life_of(const transport::Hello& hello, const JoinShard& join) {
  return {hello.incarnation, join.attempt};
}

}  // namespace

ShardServer::State::State(transport::Loop& the_loop, const Agreement& the_agreement, int the_index, int the_count,
                          std::uint64_t the_job, SnapshotOptions snapshot_options, Files& the_files)
    : loop(the_loop),
      schema(the_agreement.schema),
      schema_hash(schema.hash()),
      index(the_index),
      count(the_count),
      job(the_job),
      options(std::move(snapshot_options)),
      files(the_files),
      shard(schema, layout_of(schema, index, count), staleness_bound(the_agreement)),
      buffer_bytes(static_cast<std::uint64_t>(shard.layout().buffer_bytes)),
      value_bytes(shard.layout().value_bytes()),
      schedule(options, loop.now()) {
  if (!options.folder.empty()) {
    const auto done = [this, alive = std::weak_ptr<const char>(life)](const std::string& found) {
      loop.post([this, alive, found] {
        if (!alive.expired()) {
          on_snapshot(found);
        }
      });
    };
    writer = std::make_unique<SnapshotWriter>(files, options.folder, SnapshotId{index, count}, job, schema,
                                              shard.layout(), done);
  }
}

ShardServer::State::~State() {
  if (timer) {
    loop.cancel(*timer);
  }
}

std::optional<std::string> ShardServer::State::refusal(const transport::Hello& hello, const JoinShard& join) const {
  if (hello.job != job) {
    return concat("this server belongs to another job (", std::hex, job, " here, ", hello.job, " there)");
  }
  if (hello.role != transport::Role::kWorker || hello.rank < 0 || hello.rank >= VerdictTable::kMaxWorkers) {
    return concat("expected a worker of rank 0 to ", VerdictTable::kMaxWorkers - 1, ", found ", name(hello.role), " ",
                  hello.rank);
  }
  if (join.shard != index) {
    return concat("this is shard ", index, " of ", count, ", shard ", join.shard, " was asked for");
  }
  if (hello.schema != schema_hash) {
    return concat("worker ", hello.rank, " has another model or optimizer (schema hash ", std::hex, schema_hash,
                  " here, ", hello.schema, " there): all workers must build the same one");
  }
  return std::nullopt;
}

std::uint32_t ShardServer::State::granted_slots(std::uint32_t wanted, transport::Medium medium) const {
  std::uint64_t most = kStagingSlots;
  if (medium == transport::Medium::kSharedMemory && writer != nullptr) {
    most = std::max<std::uint64_t>(most, kLargestSegmentBytes / std::max<std::uint64_t>(buffer_bytes, 1));
  }
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, most));
}

transport::Welcome ShardServer::State::welcome(const JoinShard& join, transport::Medium medium) const {
  const std::uint32_t slots = granted_slots(join.slots, medium);
  Writer body;
  encode(ShardWelcome{slots, buffer_bytes, static_cast<std::uint8_t>(writer != nullptr)}, body);
  transport::Welcome welcome;
  welcome.to_acceptor_window_bytes = (std::uint64_t{slots} + 1) * buffer_bytes;
  welcome.to_connector_window_bytes = buffer_bytes;
  welcome.credits = kCredits;
  welcome.body = body.take();
  return welcome;
}

WorkerLink* ShardServer::State::find(const transport::Connection& connection) {
  for (const auto& link : links) {
    if (link->connection.get() == &connection) {
      return link.get();
    }
  }
  return nullptr;
}

// Its life may have ended on the way from the listener's thread; one that ends after this look is found by the next.
void ShardServer::State::add(std::unique_ptr<WorkerLink> link) {
  drop_dead_lives();
  if (!lives.is_live(link->worker, link->life)) {
    return;
  }
  WorkerLink& added = *link;
  links.push_back(std::move(link));
  note_worker(added.worker);
  out.clear();
  encode(ShardState{shard.version(), shard.next_sequence(added.worker), static_cast<std::uint8_t>(shard.initialised())},
         out);
  send(added, MessageType::kState);
  send_durable(added);
}

void ShardServer::State::drop(const transport::Connection& connection) {
  std::erase_if(links, [&](const std::unique_ptr<WorkerLink>& link) { return link->connection.get() == &connection; });
}

void ShardServer::State::drop_dead_lives() {
  seen_life_changes = lives.changes();
  std::erase_if(links,
                [this](const std::unique_ptr<WorkerLink>& link) { return !lives.is_live(link->worker, link->life); });
}

void ShardServer::State::send(WorkerLink& link, MessageType type) {
  link.connection->send(static_cast<std::uint16_t>(type), out.bytes());
  count_unread(link);
}

void ShardServer::State::put(WorkerLink& link, MessageType type, Bytes bulk, std::uint64_t offset) {
  link.connection->put(static_cast<std::uint16_t>(type), out.bytes(), bulk, offset, transport::Credit::kNone);
  count_unread(link);
}

void ShardServer::State::count_unread(WorkerLink& link) { link.unread = link.connection->idle() ? 0 : link.unread + 1; }

ShardServer::ShardServer(transport::Loop& loop, const Agreement& agreement, int shard, int shard_count,
                         std::uint64_t job, SnapshotOptions snapshots, Files& files)
    : state_(std::make_unique<State>(loop, agreement, shard, shard_count, job, std::move(snapshots), files)) {}

ShardServer::~ShardServer() = default;

void ShardServer::fence(const Fence& fence) {
  state_->lives.fence(fence);
  state_->loop.post([this, alive = std::weak_ptr<const char>(state_->life)] {
    if (!alive.expired()) {
      state_->drop_dead_lives();
    }
  });
}

const Shard& ShardServer::shard() const { return state_->shard; }
std::uint64_t ShardServer::snapshots_written() const { return state_->written; }
std::string ShardServer::snapshot_error() const { return state_->snapshot_error; }

Duration ShardServer::spin() const {
  const bool partly = std::any_of(state_->links.begin(), state_->links.end(),
                                  [](const std::unique_ptr<WorkerLink>& link) { return link->assembly.is_open(); });
  return partly ? kSpin : Duration::zero();
}

transport::Admission ShardServer::admit(const transport::Hello& hello, transport::Medium medium) {
  const auto join = decode<JoinShard>(hello.body);
  auto reason = state_->refusal(hello, join);
  if (!reason) {
    reason = state_->lives.enter(hello.rank, life_of(hello, join));
  }
  transport::Admission admission;
  admission.accepted = !reason;
  admission.reason = reason.value_or("");
  admission.largest_body_bytes = largest_body_bytes(state_->schema, state_->shard.layout());
  admission.receiver = this;
  admission.loop = &state_->loop;
  if (admission.accepted) {
    admission.welcome = state_->welcome(join, medium);
  }
  return admission;
}

void ShardServer::on_connection(std::unique_ptr<transport::Connection> connection) {
  const auto join = decode<JoinShard>(connection->hello().body);
  auto link = std::make_unique<WorkerLink>(std::move(connection), LifeTable::Life{}, state_->shard.layout());
  const transport::Connection& its = *link->connection;
  link->life = life_of(its.hello(), join);
  link->slots = state_->granted_slots(join.slots, its.medium());
  link->replay_slots = its.medium() == transport::Medium::kSharedMemory ? link->slots : join.slots;
  state_->add(std::move(link));
}

void ShardServer::on_message(transport::Connection& connection, const transport::Message& message) {
  if (state_->lives.changes() != state_->seen_life_changes) {
    state_->drop_dead_lives();
  }
  WorkerLink* const link = state_->find(connection);
  if (link == nullptr) {
    return;
  }
  try {
    state_->handle(*link, message);
  } catch (const Error& error) {
    log_warning("shard ", state_->index, ": connection with ", connection.peer(), " closed: ", error.what());
    state_->drop(connection);
  }
}

void ShardServer::on_closed(transport::Connection& connection, std::exception_ptr why) {
  (void)why;
  state_->drop(connection);
}

}  // namespace downpour::ps
