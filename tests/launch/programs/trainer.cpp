// `trainer STEPS [FIFO [ELEMENTS]]`: a worker without LibTorch. Each step pushes a gradient of -1 at learning rate 1 and pulls;
// half-way it prints "half-way" and, given a FIFO that is not "", waits until somebody has written a byte to FIFO.RANK. Rank 0
// prints the value in the end, which is the number of pushes that were applied.
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
#include "csrc/ps/member.h"

namespace {

using namespace downpour;

ps::Agreement agreement(std::int64_t elements) {
  ps::Agreement result;
  result.schema.parameters = {{"weight", {elements}, Dtype::kFloat32, 0}};
  result.schema.rule = ps::RuleKind::kSgd;
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
  Trainer(const Environment& environment, std::int64_t elements)
      : rank_(environment.rank),
        member_(member_options(environment)),
        agreement_(agreement(elements)),
        values_(static_cast<std::size_t>(elements)) {
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

  void step(std::int64_t number) {
    const std::vector<float> gradient(values_.size(), -1.0f);
    ps::Hyper hyper;
    hyper.lr = 1;
    client_->begin_push(0);
    client_->add_gradient(0, gradient.data());
    client_->end_push({&hyper, 1});
    pull();
    const ps::StepReport report = client_->settle();
    ps::Progress progress;
    progress.step = number;
    progress.samples = number * 64;
    progress.loss = 1.0 / static_cast<double>(number);
    progress.mean_staleness = report.mean_staleness;
    member_.report(progress);
    member_.tick(number);
  }

  void finish() {
    client_->settle();
    member_.finish();
    if (rank_ == 0) {
      pull();
      std::printf("value %g\n", static_cast<double>(values_.front()));
    }
  }

 private:
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
  std::vector<float> values_;
};

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  try {
    const Environment environment = read_environment();
    Trainer trainer(environment, argc > 3 ? std::atoi(argv[3]) : 1000);
    for (int number = 1; number <= steps; ++number) {
      trainer.step(number);
      if (number == steps / 2) {
        wait_half_way(argc > 2 ? argv[2] : "", environment.rank);
      }
    }
    trainer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
