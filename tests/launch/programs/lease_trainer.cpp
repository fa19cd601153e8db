// `lease_trainer EPOCHS [FIFO]`: a worker without LibTorch that trains on leases. Its parameter has an element for each lease of
// kMostEpochs epochs; the push for a lease adds 1 to that lease's element, so that the values count how often each was applied.
// After a quarter of all leases it prints "half-way" and, given a FIFO, waits until somebody has written a byte to FIFO.RANK.
// Rank 0 prints in the end how often the leases of its epochs, and those behind, were applied.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/environment.h"
#include "csrc/ps/client.h"
#include "csrc/ps/connector.h"
#include "csrc/ps/lease_book.h"
#include "csrc/ps/member.h"

namespace {

using namespace downpour;

constexpr std::int64_t kLeases = 20;  // an epoch
constexpr std::int64_t kMostEpochs = 4;

ps::Agreement agreement_of(std::int64_t epochs) {
  ps::Agreement result;
  result.schema.parameters = {{"count", {kLeases * kMostEpochs}, Dtype::kFloat32, 0}};
  result.schema.rule = ps::RuleKind::kSgd;
  result.samples = kLeases * 64;
  result.lease_samples = 64;
  result.epochs = epochs;
  return result;
}

ps::MemberOptions member_options(const Environment& environment) {
  ps::MemberOptions options;
  options.job = environment.job;
  options.rank = environment.rank;
  options.coordinator = environment.coordinator;
  options.silence = environment.silence.value_or(options.silence);
  return options;
}

void wait_half_way(const std::string& fifo, int rank) {
  std::puts("half-way");
  std::fflush(stdout);
  if (!fifo.empty()) {
    const int fd = ::open((fifo + "." + std::to_string(rank)).c_str(), O_RDONLY);
    char byte = 0;
    [[maybe_unused]] const ssize_t count = ::read(fd, &byte, 1);
    ::close(fd);
  }
}

class Trainer {
 public:
  Trainer(const Environment& environment, std::int64_t epochs)
      : rank_(environment.rank), member_(member_options(environment)), agreement_(agreement_of(epochs)) {
    member_.agree(agreement_);
    const ps::Joined joined = member_.joined();
    connector_ = std::make_unique<ps::NetworkConnector>(
        clock_, ps::NetworkOptions{.servers = joined.servers, .shard_count = joined.shards});
    client_ = std::make_unique<ps::Client>(
        agreement_.schema, joined.shards, *connector_,
        ps::ClientOptions{.job = environment.job, .rank = rank_, .incarnation = joined.incarnation});
    client_->open();
    client_->initialise([this](std::uint32_t) { return values_.data(); }, std::vector<double>{0.0});
  }

  void train(const std::string& fifo) {
    std::int64_t done = 0;
    for (ps::Leases answer; answer.end == 0; answer = member_.ask_leases(1)) {
      for (const ps::Lease& lease : answer.leases) {
        push(lease.id);
        if (++done == kLeases * agreement_.epochs / 4) {
          wait_half_way(fifo, rank_);
        }
      }
    }
  }

  void finish() {
    member_.finish();
    if (rank_ == 0) {
      pull();
      const auto behind = values_.begin() + kLeases * agreement_.epochs;
      const auto [least, most] = std::minmax_element(values_.begin(), behind);
      const auto most_behind = std::max_element(behind, values_.end());
      std::printf("applied %g to %g times, behind: %g\n", static_cast<double>(*least), static_cast<double>(*most),
                  most_behind == values_.end() ? 0.0 : static_cast<double>(*most_behind));
    }
  }

 private:
  void push(std::uint64_t lease) {
    std::vector<float> gradient(values_.size());
    gradient.at(ps::lease_number(lease) - 1) = -1;
    ps::Hyper hyper;
    hyper.lr = 1;
    client_->begin_push(lease);
    client_->add_gradient(0, gradient.data());
    client_->end_push({&hyper, 1});
    client_->settle();
    member_.leases_done(client_->take_decided_leases());
  }

  void pull() {
    client_->begin_pull();
    client_->finish_pull([this](const ps::Slice&, std::int64_t begin, std::int64_t count, const void* source) {
      const auto* from = static_cast<const float*>(source);
      std::copy(from, from + count, values_.begin() + begin);
    });
  }

  int rank_;
  SteadyClock clock_;
  ps::Member member_;
  ps::Agreement agreement_;
  std::unique_ptr<ps::NetworkConnector> connector_;
  std::unique_ptr<ps::Client> client_;
  std::vector<float> values_ = std::vector<float>(kLeases * kMostEpochs);
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Environment environment = read_environment();
    Trainer trainer(environment, argc > 1 ? std::atoi(argv[1]) : 1);
    trainer.train(argc > 2 ? argv[2] : "");
    trainer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lease_trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
