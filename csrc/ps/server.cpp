#include "csrc/ps/server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/stacks.h"
#include "csrc/ps/coordinator_link.h"
#include "csrc/ps/shard_thread.h"
#include "csrc/transport/tcp.h"

namespace downpour::ps {
namespace {

// How long the coordinator may take to hear the last words; it does so at once, unless it has died.
constexpr Duration kLastWords = std::chrono::seconds(2);

// Adds up what a server says of its shards.
void add(const ShardStatus& shard, ServerStatus& sum) {
  sum.counters += shard.counters;
  sum.snapshots += shard.snapshots;
  if (!shard.snapshot_error.empty()) {
    sum.snapshot_error = shard.snapshot_error;
  }
}

// One server process; itself the acceptor that leads each newcomer to its shard.
class ServerProcess final : public transport::Acceptor {
 public:
  explicit ServerProcess(const ServerOptions& options)
      : options_(options),
        exposure_(transport::exposure_of(options)),
        socket_(options.listen_fd >= 0 ? Fd(options.listen_fd)
                                       : transport::bind_socket(transport::parse_address(options.address), exposure_)),
        loop_(clock_),
        disk_(disk_files()),
        files_(options.files != nullptr ? options.files : disk_.get()),
        coordinator_(loop_, options_) {}
  ~ServerProcess() override {
    listener_.reset();  // nobody is led to a shard that ends
    shards_.clear();
  }

  int run();
  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override;
  void on_connection(std::unique_ptr<transport::Connection> connection) override;

 private:
  bool is_mine(int shard) const { return server_of_shard(shard, shard_count_, server_count_) == options_.index; }
  ShardThread* find(int shard);
  void obey();
  void make_shards();
  void open_shards();
  ServerStatus status();
  void say_ready();
  void beat();
  void end();
  void note_change(std::exception_ptr why);
  void check_shards();

  const ServerOptions options_;
  const transport::Exposure exposure_;
  SteadyClock clock_;
  Fd socket_;
  transport::Loop loop_;
  const std::unique_ptr<Files> disk_;
  Files* const files_;
  CoordinatorLink coordinator_;
  int shard_count_ = 0;
  int server_count_ = 1;
  std::vector<Fence> fences_;                         // all so far: shards made later obey them too
  std::vector<std::unique_ptr<ShardThread>> shards_;  // unchanged while anybody listens
  std::vector<int> indices_;                          // of the shards
  bool made_ = false;                                 // all of them, whether ready or not
  std::vector<std::uint64_t> looks_to_answer_;        // by shard: the coordinator's question; empty: none is open
  std::unique_ptr<transport::Listener> listener_;
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_
};

int ServerProcess::run() {
  TimePoint next_beat = loop_.now();
  bool stopped = false;
  if (options_.stop_fd >= 0) {
    loop_.watch(options_.stop_fd, EPOLLIN, [&stopped, this](std::uint32_t) {
      stopped = true;
      loop_.unwatch(options_.stop_fd);
    });
  }
  while (true) {
    loop_.run_once(next_beat);
    obey();
    check_shards();
    if (coordinator_.is_finished() || stopped) {
      end();
      return 0;
    }
    if (coordinator_.abort_reason()) {
      log_error("server ", options_.index, ": the job was aborted: ", *coordinator_.abort_reason());
      end();
      return 1;
    }
    coordinator_.check_alive();
    if (loop_.now() >= next_beat) {
      beat();
      next_beat = loop_.now() + options_.heartbeat;
    }
  }
}

void ServerProcess::obey() {
  for (const Fence& fence : coordinator_.take_fences()) {
    fences_.push_back(fence);
    for (std::size_t i = 0; listener_ != nullptr && i < shards_.size(); ++i) {
      shards_[i]->server().fence(fence);
    }
  }
  if (!made_ && coordinator_.joined() && coordinator_.agreement()) {
    make_shards();
  }
  if (made_ && listener_ == nullptr && std::ranges::all_of(shards_, &ShardThread::is_ready)) {
    open_shards();
  }
  if (coordinator_.take_question()) {
    looks_to_answer_.clear();
    for (const auto& shard : shards_) {
      looks_to_answer_.push_back(shard->looks_asked() + 1);
    }
  }
}

void ServerProcess::make_shards() {
  made_ = true;
  shard_count_ = coordinator_.joined()->shards;
  server_count_ = static_cast<int>(coordinator_.joined()->servers.size());
  const Agreement& agreement = *coordinator_.agreement();
  for (int shard = 0; shard < shard_count_; ++shard) {
    if (is_mine(shard)) {
      shards_.push_back(std::make_unique<ShardThread>(clock_, agreement, shard, shard_count_, options_, *files_,
                                                      [this](std::exception_ptr why) { note_change(std::move(why)); }));
      indices_.push_back(shard);
    }
  }
}

// Nobody is let in before all shards are there: a worker that comes earlier waits in the socket's queue.
void ServerProcess::open_shards() {
  for (const Fence& fence : fences_) {
    for (const auto& shard : shards_) {
      shard->server().fence(fence);
    }
  }
  listener_ = transport::listen_tcp(loop_, std::move(socket_), *this, transport::SharedMemory::kAuto, exposure_);
  say_ready();
}

void ServerProcess::say_ready() {
  LeaseTable decided = LeaseTable::all();
  for (const auto& shard : shards_) {
    decided = decided.intersection(shard->status().leases);
  }
  coordinator_.say_ready({coordinator_.agreement()->schema.hash(), decided.first_runs(ServerReady::kMostRuns)});
}

ServerStatus ServerProcess::status() {
  ServerStatus status;
  status.server = options_.index;
  for (const auto& shard : shards_) {
    status.shards += shard->is_ready() ? 1 : 0;
    add(shard->status(), status);
  }
  return status;
}

// What a shard says of the time before the question is no answer to it.
void ServerProcess::beat() {
  coordinator_.report(status());
  bool answered = !looks_to_answer_.empty();
  for (std::size_t i = 0; i < looks_to_answer_.size(); ++i) {
    answered = answered && shards_[i]->status().looks >= looks_to_answer_[i];
  }
  if (answered) {
    looks_to_answer_.clear();
    say_ready();
  }
}

// What was counted last is told when nothing can be counted any more.
void ServerProcess::end() {
  listener_.reset();
  for (const auto& shard : shards_) {
    shard->save_and_end();
  }
  ServerStatus last = status();
  last.last = 1;
  coordinator_.report(last);
  loop_.run_until([this] { return !coordinator_.is_connected(); }, loop_.now() + kLastWords);
  check_shards();
}

void ServerProcess::note_change(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  if (why != nullptr) {
    failure_ = std::move(why);
  }
  loop_.wake();
}

void ServerProcess::check_shards() {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

ShardThread* ServerProcess::find(int shard) {
  const auto found = std::find(indices_.begin(), indices_.end(), shard);
  return found == indices_.end() ? nullptr : shards_[static_cast<std::size_t>(found - indices_.begin())].get();
}

transport::Admission ServerProcess::admit(const transport::Hello& hello, transport::Medium medium) {
  const int shard = decode<JoinShard>(hello.body).shard;
  if (ShardThread* const owner = find(shard)) {
    return owner->server().admit(hello, medium);
  }
  transport::Admission refused;
  refused.reason =
      concat("server ", options_.index, " of ", server_count_, " has no shard ", shard, " of ", shard_count_);
  return refused;
}

// On the shard's own thread.
void ServerProcess::on_connection(std::unique_ptr<transport::Connection> connection) {
  ShardThread* const owner = find(decode<JoinShard>(connection->hello().body).shard);
  owner->server().on_connection(std::move(connection));
}

}  // namespace

int run_server(const ServerOptions& options) {
  print_stacks_on_signal();
  return ServerProcess(options).run();
}

}  // namespace downpour::ps
