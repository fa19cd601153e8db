#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "csrc/ps/coordinator.h"
#include "csrc/ps/member.h"
#include "csrc/ps/snapshot.h"
#include "tests/ps/coordinator_host.h"
#include "tests/ps/wire.h"
#include "tests/support/job_worker.h"
#include "tests/support/one_parameter.h"

// Whole servers under a coordinator, as the launcher runs them, in threads of this process.
namespace downpour::ps {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kJob = 5;

class Job final : public CoordinatorObserver {
 public:
  Job(int workers, int servers, int shards, std::filesystem::path folder) : folder_(std::move(folder)) {
    for (int server = 0; server < servers; ++server) {
      sockets_.push_back(bind_anywhere());
      addresses_.push_back(transport::local_address(sockets_.back().get()).text());
    }
    MembershipOptions options;
    options.workers = workers;
    options.servers = servers;
    options.shards = shards;
    host_.call([&] {
      coordinator_ = std::make_unique<Coordinator>(host_.loop(), kJob, options, addresses_, *this);
      host_.listen(*coordinator_);
    });
  }
  ~Job() override { end_coordinator(); }
  void end_coordinator() {
    if (coordinator_ != nullptr) {
      host_.call([this] {
        host_.close_listener();
        coordinator_.reset();
      });
    }
  }
  void call(const std::function<void(Coordinator&)>& what) {
    host_.call([&] { what(*coordinator_); });
  }

  // Its exit status; its exception. What a test leaves behind ends when the coordinator does.
  int end_of_server(int index) { return servers_.at(index).get(); }
  void start_server(int index, Duration heartbeat = std::chrono::milliseconds(20), Files* files = nullptr) {
    ServerOptions options;
    options.index = index;
    options.job = kJob;
    options.coordinator = host_.address();
    options.listen_fd = ::dup(sockets_[static_cast<std::size_t>(index)].get());
    options.snapshots.folder = folder_;
    options.heartbeat = heartbeat;
    options.files = files;
    servers_[index] = std::async(std::launch::async, [options] { return run_server(options); });
  }
  MemberOptions member(int rank) const {
    MemberOptions options;
    options.job = kJob;
    options.rank = rank;
    options.coordinator = host_.address();
    options.heartbeat = std::chrono::milliseconds(20);
    return options;
  }
  const std::vector<std::string>& addresses() const { return addresses_; }

  void on_server_status(const ServerStatus& status) override {
    const std::lock_guard lock(mutex_);
    statuses_[status.server] = status;
    ++heard_[status.server];
    changed_.notify_all();
  }
  ServerStatus last_said(int server) {
    const std::lock_guard lock(mutex_);
    return statuses_[server];
  }
  bool hears_of_server(int server, int times) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return heard_[server] >= times; });
  }
  bool sees_applied(std::uint64_t applied) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      std::uint64_t sum = 0;
      for (const auto& [server, status] : statuses_) {
        sum += status.counters.applied;
      }
      return sum == applied;
    });
  }

 private:
  const std::filesystem::path folder_;
  std::map<int, std::future<int>> servers_;
  std::vector<Fd> sockets_;
  std::vector<std::string> addresses_;
  LoopHost host_;
  std::unique_ptr<Coordinator> coordinator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, ServerStatus> statuses_;
  std::map<int, int> heard_;
};

// A worker of one parameter under the coordinator.
class OneParameterWorker : public JobWorker {
 public:
  OneParameterWorker(Job& job, int rank, const Agreement& agreement)
      : JobWorker(job.member(rank), agreement),
        values(static_cast<std::size_t>(agreement.schema.parameters[0].numel())) {
    initialise(client, values);
  }
  void push(float value) { ps::push(client, std::vector<float>(values.size(), value)); }
  void pull() { ps::pull(client, values); }

  std::vector<float> values;
};

class Server : public testing::Test {
 protected:
  ~Server() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ = fresh_folder();
  const Agreement agreement_ = agreement_of(1000);
};

TEST_F(Server, WholeJobOfTwoServersWithThreeShardsAndTwoWorkers) {
  Job job(2, 2, 3, folder_);
  job.start_server(0);
  job.start_server(1);
  std::thread other([&] {
    OneParameterWorker worker(job, 1, agreement_);
    for (int i = 0; i < 10; ++i) {
      worker.push(1);
    }
    worker.client.settle();
    worker.member.finish();
  });
  {
    OneParameterWorker worker(job, 0, agreement_);
    for (int i = 0; i < 10; ++i) {
      worker.push(1);
    }
    worker.client.settle();
    EXPECT_TRUE(job.sees_applied(3 * 20));
    worker.member.finish();
    worker.pull();
    EXPECT_EQ(worker.values, std::vector<float>(1000, 20));
  }
  other.join();
  EXPECT_EQ(job.end_of_server(0), 0);
  EXPECT_EQ(job.end_of_server(1), 0);
  const auto files = disk_files();
  const auto layouts = partition(agreement_.schema, 3);
  for (int shard = 0; shard < 3; ++shard) {
    const auto state =
        read_snapshot(*files, folder_, {shard, 3}, agreement_.schema, layouts[static_cast<std::size_t>(shard)]);
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(state->version.version, 20u);  // what came last is saved at the end
  }
}

TEST_F(Server, AJobGoesOnFromTheSnapshotsOfTheOneBefore) {
  for (int run = 1; run <= 2; ++run) {
    Job job(1, 1, 2, folder_);
    job.start_server(0);
    {
      OneParameterWorker worker(job, 0, agreement_);
      worker.push(1);
      worker.pull();
      EXPECT_EQ(worker.values, std::vector<float>(1000, static_cast<float>(run)));
      worker.member.finish();
    }
    EXPECT_EQ(job.end_of_server(0), 0);
  }
}

TEST_F(Server, ItsLastWordsCountWhatNoBeatHasTold) {
  Job job(1, 1, 2, folder_);
  job.start_server(0, std::chrono::seconds(5));
  {
    OneParameterWorker worker(job, 0, agreement_);
    worker.push(1);
    worker.push(1);
    worker.client.settle();
    worker.member.finish();
  }
  EXPECT_EQ(job.end_of_server(0), 0);
  EXPECT_EQ(job.last_said(0).counters.applied, 2u * 2);
  EXPECT_GE(job.last_said(0).snapshots, 2u) << "that of the end, too";
  EXPECT_EQ(job.last_said(0).last, 1);
}

TEST_F(Server, ItsCountersGoOnFromTheSnapshotInTheSameJob) {
  for (std::uint64_t run = 1; run <= 2; ++run) {
    Job job(1, 1, 2, folder_);
    job.start_server(0);
    {
      OneParameterWorker worker(job, 0, agreement_);
      worker.push(1);
      worker.client.settle();
      worker.member.finish();
    }
    EXPECT_EQ(job.end_of_server(0), 0);
    EXPECT_EQ(job.last_said(0).counters.applied, 2 * run);
    EXPECT_EQ(job.last_said(0).counters.pushed_bytes, 4000 * run);
  }
}

TEST_F(Server, EndsWithAnErrorWhenTheJobIsAborted) {
  Job job(1, 1, 1, folder_);
  job.start_server(0);
  OneParameterWorker worker(job, 0, agreement_);
  job.call([](Coordinator& coordinator) { coordinator.abort("enough"); });
  EXPECT_EQ(job.end_of_server(0), 1);
}

TEST_F(Server, EndsWhenTheCoordinatorIsLost) {
  Job job(1, 1, 1, folder_);
  job.start_server(0);
  OneParameterWorker worker(job, 0, agreement_);
  job.end_coordinator();
  EXPECT_THROW(job.end_of_server(0), CommError);
}

TEST_F(Server, ObeysFences) {
  Job job(1, 1, 1, folder_);
  job.start_server(0);
  OneParameterWorker worker(job, 0, agreement_);
  worker.push(1);
  worker.client.settle();
  auto again = std::make_unique<Member>(job.member(0));
  EXPECT_EQ(again->joined().incarnation, 2u);
  const auto pull_until_fenced = [&] {
    while (true) {  // the fence takes its time on its way
      worker.pull();
    }
  };
  EXPECT_THROW(pull_until_fenced(), FencedError);
  worker.client.set_incarnation(2);
  worker.push(1);
  worker.pull();
  EXPECT_EQ(worker.values, std::vector<float>(1000, 2));
  again->finish();
  again.reset();  // servers stay as long as somebody may pull
  EXPECT_EQ(job.end_of_server(0), 0);
}

// The disk's, which takes its time over the first look.
class SlowFiles final : public Files {
  using Path = std::filesystem::path;

 public:
  std::unique_ptr<File> create(const Path& where) override { return disk_->create(where); }
  std::vector<std::byte> read(const Path& where, std::size_t limit) override { return disk_->read(where, limit); }
  bool exists(const Path& where) override { return disk_->exists(where); }
  void rename(const Path& from, const Path& to) override { disk_->rename(from, to); }
  void remove(const Path& where) override { disk_->remove(where); }
  std::vector<std::string> list(const Path& folder) override {
    gone_.wait();
    return disk_->list(folder);
  }
  void sync_folder(const Path& folder) override { disk_->sync_folder(folder); }
  void create_folders(const Path& folder) override { disk_->create_folders(folder); }
  void go() { go_.set_value(); }

 private:
  std::promise<void> go_;
  const std::shared_future<void> gone_ = go_.get_future().share();
  const std::unique_ptr<Files> disk_ = disk_files();
};

TEST_F(Server, ThatTakesLongToRestoreIsNotSilentAndOpensThen) {
  SlowFiles files;
  Job job(1, 1, 1, folder_);
  job.start_server(0, std::chrono::milliseconds(20), &files);
  auto member = std::make_unique<Member>(job.member(0));
  std::promise<void> agreed;
  std::thread offer([&] {
    member->agree(agreement_);
    agreed.set_value();
  });
  ASSERT_TRUE(job.hears_of_server(0, 20));
  EXPECT_EQ(job.last_said(0).shards, 0u);
  files.go();
  agreed.get_future().get();
  member->finish();
  member.reset();
  EXPECT_EQ(job.end_of_server(0), 0);
  EXPECT_EQ(job.last_said(0).shards, 1u);
  offer.join();
}

TEST_F(Server, ACorruptedSnapshotEndsItWithTheReason) {
  {
    Job job(1, 1, 1, folder_);
    job.start_server(0);
    auto worker = std::make_unique<OneParameterWorker>(job, 0, agreement_);
    worker->push(1);
    worker->member.finish();
    worker.reset();
    EXPECT_EQ(job.end_of_server(0), 0);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::resize_file(entry.path(), 100);
    }
  }
  Job job(1, 1, 1, folder_);
  job.start_server(0);
  auto member = std::make_unique<Member>(job.member(0));
  std::thread offer([&] { EXPECT_ANY_THROW(member->agree(agreement_)); });
  try {
    job.end_of_server(0);
    ADD_FAILURE() << "a corrupted snapshot was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("safetensors"));
  }
  job.call([](Coordinator& coordinator) { coordinator.abort("no server"); });
  offer.join();
}

}  // namespace
}  // namespace downpour::ps
