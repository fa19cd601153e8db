#include "csrc/ps/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "tests/ps/membership_job.h"

namespace downpour::ps {
namespace {

using namespace membership_job;

// Workers and servers join, die, stall and leave at random. Whatever happens: incarnations grow, every lease is done once, no
// message goes to a member that is not there, the minimum never falls, and once the trouble ends everyone finishes. A server that
// dies goes back to its snapshot, and gets again what the workers alive have sent it: in the end each has decided every lease.
class RandomJob : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr int kWorkers = 3, kServers = 2;
  // A server's shards: what they have decided, and what of it survives its death.
  struct Shards {
    LeaseTable decided, snapshot;
  };
  struct Life {
    bool connected = false, agreed = false, finished = false, asked = false, ended = false, finishing = false;
    std::uint32_t incarnation = 0;
    std::int64_t step = 0;
    std::vector<std::uint64_t> leases;
    std::vector<std::uint64_t> sent;  // of a worker: what it would send again
  };

  void apply(const Actions& actions) {
    for (const Action& action : actions) {
      std::visit([this](const auto& it) { obey(it); }, action);
    }
    ASSERT_GE(job.membership.minimum_clock(), minimum);
    minimum = job.membership.minimum_clock();
  }
  Life& life(Target target) {
    return target.kind == Target::Kind::kWorker ? workers[target.index] : servers[target.index];
  }
  void obey(const SendJoined& it) {
    EXPECT_GT(it.joined.incarnation, life(it.to).incarnation);
    life(it.to).incarnation = it.joined.incarnation;
  }
  void obey(const SendSchema& it) {
    EXPECT_TRUE(life(it.to).connected);
    life(it.to).agreed = true;
  }
  void obey(const SendSchemaRefused& it) { ADD_FAILURE() << it.reason; }
  void obey(const SendFence& it) {
    EXPECT_TRUE(life(it.to).connected);
    if (it.to.kind == Target::Kind::kServer) {
      EXPECT_GT(it.fence.below_incarnation, 1u);
    }
  }
  void obey(const SendMinimumClock& it) {
    EXPECT_TRUE(life(it.to).connected);
    EXPECT_EQ(it.minimum.clock, job.membership.minimum_clock());
  }
  void obey(const SendLeases& it) {
    Life& worker = life(it.to);
    EXPECT_TRUE(worker.connected && worker.asked);
    worker.asked = false;
    worker.ended = it.leases.end != 0 && it.leases.leases.empty();
    for (const Lease& lease : it.leases.leases) {
      worker.leases.push_back(lease.id);
    }
  }
  void obey(const SendFinished& it) {
    EXPECT_TRUE(life(it.to).connected);
    life(it.to).finished = true;
  }
  void obey(const Disconnect& it) {
    EXPECT_TRUE(life(it.to).connected);
    reset(life(it.to));
  }
  void obey(const AskDecided& it) { EXPECT_TRUE(servers[it.server].connected && servers[it.server].agreed); }
  void obey(const ServerSilent&) {}
  void obey(const Note&) {}
  static void reset(Life& life) {
    const std::uint32_t incarnation = life.incarnation;
    life = {};
    life.incarnation = incarnation;
  }

  void connect(Target target) {
    life(target).connected = true;
    apply(job.membership.join(target, ++pid, job.clock.now()));
  }
  void lose(Target target) {
    reset(life(target));
    if (target.kind == Target::Kind::kServer) {
      shards[target.index].decided = shards[target.index].snapshot;
    }
    apply(job.lose(target));
  }
  void work(int index) {
    Life& worker = workers[index];
    if (!worker.connected) {
      connect(worker_target(index));
    } else if (!worker.agreed) {
      apply(job.membership.offer(index, agreement));
    } else if (!worker.leases.empty()) {
      const std::uint64_t lease = worker.leases.back();
      worker.leases.pop_back();
      worker.sent.push_back(lease);
      send_all(worker);
      apply(job.membership.leases_done(index, {&lease, 1}));
      apply(job.membership.tick(index, ++worker.step));
    } else if (worker.ended && !worker.finishing) {
      worker.finishing = true;
      apply(job.membership.finish(index));
    } else if (!worker.asked && !worker.ended) {
      worker.asked = true;
      apply(job.membership.ask_leases(index, 2));
    }
  }
  void send_all(const Life& worker) {
    for (Shards& server : shards) {
      for (const std::uint64_t lease : worker.sent) {
        server.decided.record(lease);
      }
    }
  }
  void serve(int index) {
    if (!servers[index].connected) {
      connect(server_target(index));
    } else if (servers[index].agreed) {
      apply(job.membership.server_ready(index, ready_for(agreement, shards[index].decided)));
    }
  }
  void turn(Random& random, bool trouble) {
    const int worker = static_cast<int>(random.below(kWorkers)), server = static_cast<int>(random.below(kServers));
    const std::uint64_t what = random.below(20);
    if (what == 0 && trouble) {
      lose(worker_target(worker));
    } else if (what == 1 && trouble) {
      lose(server_target(server));
    } else if (what == 2 && trouble && workers[worker].connected) {
      connect_again(worker);
    } else if (what == 3 && trouble) {
      shards[server].snapshot = shards[server].decided;
    } else if (what < 6) {
      serve(server);
    } else if (what < 8) {
      job.clock.advance(300ms);
      hear_all(trouble ? static_cast<int>(random.below(kWorkers + 1)) : kWorkers);
      apply(job.membership.check(job.clock.now()));
    } else {
      work(worker);
    }
  }
  void connect_again(int index) {
    reset(workers[index]);
    workers[index].connected = true;
    apply(job.membership.join(worker_target(index), pids_of_live(index), job.clock.now()));
  }
  std::int64_t pids_of_live(int index) {
    for (std::int64_t candidate = 1; candidate <= pid; ++candidate) {
      if (!job.membership.refusal(worker_target(index), candidate)) {
        return candidate;
      }
    }
    return ++pid;
  }
  void hear_all(int silent_worker) {
    for (int index = 0; index < kWorkers; ++index) {
      if (index != silent_worker) {
        job.membership.heard(worker_target(index), job.clock.now());
      }
    }
    for (int index = 0; index < kServers; ++index) {
      job.membership.heard(server_target(index), job.clock.now());
    }
  }
  // Once it is told, nobody gives leases any more, so the trouble must be over.
  bool end_is_told() const {
    return std::ranges::any_of(workers, [](const Life& worker) { return worker.ended; });
  }
  bool all_finished() const {
    return std::ranges::all_of(workers, [](const Life& worker) { return worker.finished; });
  }

  Job job{kWorkers, kServers};
  Agreement agreement = [] {
    Agreement all = with_leases(static_cast<std::int64_t>(4 + GetParam() % 37), 2);
    all.max_lead = 2;
    return all;
  }();
  std::array<Life, kWorkers> workers;
  std::array<Life, kServers> servers;
  std::array<Shards, kServers> shards;
  std::int64_t pid = 0, minimum = 0;
};

TEST_P(RandomJob, EveryoneFinishesOnceTheTroubleEnds) {
  Random random(GetParam());
  for (int i = 0; i < 400 && !end_is_told(); ++i) {
    turn(random, /*trouble=*/true);
  }
  for (int i = 0; i < 20'000 && !all_finished(); ++i) {
    turn(random, /*trouble=*/false);
  }
  EXPECT_TRUE(all_finished());
  ASSERT_NE(job.membership.leases(), nullptr);
  EXPECT_TRUE(job.membership.leases()->all_done());
  const auto total = static_cast<std::uint64_t>(2 * agreement.samples);
  EXPECT_EQ(job.membership.leases()->done_count(), total);
  for (const Shards& server : shards) {
    EXPECT_EQ(server.decided.count(), total);
  }
  for (int index = 0; index < kWorkers; ++index) {
    reset(workers[index]);
    apply(job.say_goodbye(index));
  }
  EXPECT_TRUE(job.membership.finished());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomJob, ::testing::Range<std::uint64_t>(0, 300));

}  // namespace
}  // namespace downpour::ps
