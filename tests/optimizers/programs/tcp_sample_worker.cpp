// sample_worker's ledger over TCP, whatever the machine offers: on ServerJob itself, since nothing switches off DownpourSGD's
// offer of shared memory. A lease is a batch. usage: tcp_sample_worker SAMPLES EPOCHS HOLD GATE, the last two as sample_worker's.
#include <cstdlib>
#include <iostream>
#include <string>

#include "csrc/base/environment.h"
#include "csrc/ps/lease_book.h"
#include "tests/optimizers/meet.h"
#include "tests/optimizers/over_tcp.h"

namespace {

using namespace downpour;

constexpr std::int64_t kBatch = 4;
constexpr std::uint64_t kSeed = 3;

class Worker final : public testing::OverTcp {
 public:
  Worker(const torch::Tensor& counts, std::int64_t size, std::int64_t epochs)
      : OverTcp(optimizers::Training::of(std::vector<torch::Tensor>{counts}), torch::optim::SGDOptions(1), {}),
        size_(size) {
    job_.agree_samples(size, kBatch, SamplesOptions().batch_size(kBatch).epochs(epochs).seed(kSeed));
  }

  // The samples of the next batch.
  std::optional<torch::Tensor> next() {
    const auto lease = job_.next_lease();
    if (!lease) {
      return std::nullopt;
    }
    replica_.cadence.begin_lease(lease->id, 1);
    if (epoch_ != lease->epoch) {
      epoch_ = lease->epoch;
      order_ = ps::epoch_order(size_, kSeed, epoch_, ps::Order::kShuffled);
    }
    return torch::tensor(std::vector<std::int64_t>(order_.begin() + lease->begin, order_.begin() + lease->end));
  }

 private:
  std::int64_t size_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "usage: tcp_sample_worker SAMPLES EPOCHS HOLD GATE\n";
    return 2;
  }
  const std::int64_t size = std::atoll(arguments[1]), epochs = std::atoll(arguments[2]);
  torch::set_num_threads(1);
  const torch::Tensor counts = torch::zeros({size}).requires_grad_(true);
  Worker worker(counts, size, epochs);
  std::int64_t batches = 0;
  while (const auto samples = worker.next()) {
    worker.zero_grad();
    counts.index_select(0, *samples).sum().neg().backward();
    worker.step();
    if (++batches == std::atoll(arguments[3])) {
      testing::wait_at_gate(arguments[4]);
    }
  }
  worker.finish();
  const bool exact = torch::equal(counts.detach(), torch::full({size}, static_cast<double>(epochs)));
  std::cout << (exact ? "exact" : "INEXACT") << " after " << batches << " batches over " << worker.transport()
            << std::endl;
  return exact ? 0 : 1;
}
