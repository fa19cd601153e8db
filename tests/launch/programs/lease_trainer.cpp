// `lease_trainer EPOCHS [FIFO]`: a worker without LibTorch that trains on leases. Its parameter has an element for each lease of
// kMostEpochs epochs; the push for a lease adds 1 to that lease's element, so that the values count how often each was applied.
// After a quarter of all leases it prints "half-way" and, given a FIFO, waits until somebody has written a byte to FIFO.RANK.
// Rank 0 prints in the end how often the leases of its epochs, and those behind, were applied.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "csrc/ps/lease_book.h"
#include "tests/support/job_worker.h"
#include "tests/support/one_parameter.h"

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

class Trainer {
 public:
  Trainer(const Environment& environment, std::int64_t epochs)
      : rank_(environment.rank), epochs_(epochs), worker_(ps::member_options(environment), agreement_of(epochs)) {
    ps::initialise(worker_.client, values_);
  }

  void train(const std::string& fifo) {
    std::int64_t done = 0;
    for (ps::Leases answer; answer.end == 0; answer = worker_.member.ask_leases(1)) {
      for (const ps::Lease& lease : answer.leases) {
        push(lease.id);
        if (++done == kLeases * epochs_ / 4) {
          ps::wait_half_way(fifo, rank_);
        }
      }
    }
  }

  void finish() {
    worker_.member.finish();
    if (rank_ == 0) {
      ps::pull(worker_.client, values_);
      const auto behind = values_.begin() + kLeases * epochs_;
      const auto [least, most] = std::minmax_element(values_.begin(), behind);
      const auto most_behind = std::max_element(behind, values_.end());
      std::printf("applied %g to %g times, behind: %g\n", static_cast<double>(*least), static_cast<double>(*most),
                  most_behind == values_.end() ? 0.0 : static_cast<double>(*most_behind));
    }
  }

 private:
  void push(std::uint64_t lease) {
    std::vector<float> gradient(values_.size());
    gradient.at(ps::lease_number(lease) - 1) = 1;
    ps::push(worker_.client, gradient, lease);
    worker_.client.settle();
    worker_.member.leases_done(worker_.client.take_decided_leases());
  }

  int rank_;
  std::int64_t epochs_;
  ps::JobWorker worker_;
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
