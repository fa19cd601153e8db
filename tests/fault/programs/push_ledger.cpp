// `push_ledger SLOTS MEDIUM BUDGET FOLDER`: a worker that keeps a ledger, without LibTorch. It pushes until there is a byte at
// FOLDER/gate.RANK. Its push n belongs to its slot n % SLOTS, in round n / SLOTS: there it adds 1 to an element of the first
// parameter, and 4^round to one of the second, whose digits to base 4 so say how often each round's push was applied. At the end
// every worker writes a line a slot to FOLDER/ledger.RANK. MEDIUM: tcp, or auto; BUDGET: bytes of replay.
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/job_worker.h"

namespace {

using namespace downpour;

constexpr std::int64_t kRounds = 25;  // as many digits to base 4 as a double holds

struct Plan {
  std::int64_t slots = 0;  // a worker
  bool tcp = false;
  std::uint64_t budget = 0;  // bytes
  std::string folder;
};

ps::Agreement agreement(std::int64_t elements) {
  ps::Agreement result;
  result.schema.parameters = {{"single", {elements}, Dtype::kFloat32, 0}, {"double", {elements}, Dtype::kFloat64, 0}};
  result.schema.rule = ps::RuleKind::kSgd;
  return result;
}

ps::NetworkOptions network_of(const Plan& plan) {
  ps::NetworkOptions options;
  options.shared_memory = plan.tcp ? transport::SharedMemory::kNever : transport::SharedMemory::kAuto;
  return options;
}

ps::ClientOptions client_of(const Plan& plan) {
  ps::ClientOptions options;
  options.replay_budget_bytes = plan.budget;
  return options;
}

class Worker {
 public:
  Worker(const Environment& environment, const Plan& plan)
      : plan_(plan),
        rank_(environment.rank),
        elements_(plan.slots * environment.world_size),
        worker_(ps::member_options(environment), agreement(elements_), network_of(plan), client_of(plan)) {
    worker_.client.initialise([this](std::uint32_t parameter) { return values(parameter); }, std::vector<double>{0.0});
  }

  void push() {
    const std::int64_t number = pushed_++;
    const auto at = static_cast<std::size_t>(rank_ * plan_.slots + number % plan_.slots);
    single_gradient_[at] = -1;
    double_gradient_[at] = -std::exp2(2 * static_cast<double>(number / plan_.slots));
    worker_.client.begin_push(0);
    worker_.client.add_gradient(0, single_gradient_.data());
    worker_.client.add_gradient(1, double_gradient_.data());
    worker_.client.end_push({&hyper_, 1});
    single_gradient_[at] = 0;
    double_gradient_[at] = 0;
    if (number % 3 == 0) {
      pull();
    }
    if (number % 5 == 0) {
      worker_.client.settle();
    }
    report(number);
  }

  std::int64_t pushed() const { return pushed_; }

  void finish() {
    worker_.client.save();  // a crash that no push has met yet is met here, before the last report
    report(pushed_);
    worker_.member.finish();
    pull();
    write_ledger();
  }

 private:
  void report(std::int64_t step) {
    ps::Progress progress;
    progress.step = step;
    progress.lost = static_cast<std::int64_t>(worker_.client.counters().lost);
    worker_.member.report(progress);
    worker_.member.tick(step);
  }

  const void* values(std::uint32_t parameter) {
    return parameter == 0 ? static_cast<const void*>(single_.data()) : double_.data();
  }

  void pull() {
    worker_.client.begin_pull();
    worker_.client.finish_pull(
        [this](const ps::Slice& slice, std::int64_t begin, std::int64_t count, const void* source) {
          if (slice.parameter == 0) {
            std::copy_n(static_cast<const float*>(source), count, single_.begin() + begin);
          } else {
            std::copy_n(static_cast<const double*>(source), count, double_.begin() + begin);
          }
        });
  }

  // A line a slot: rank, slot, how often it was pushed, its two values.
  void write_ledger() const {
    std::ofstream file(plan_.folder + "/ledger." + std::to_string(rank_));
    file.precision(17);
    for (std::int64_t slot = 0; slot < plan_.slots; ++slot) {
      const auto at = static_cast<std::size_t>(rank_ * plan_.slots + slot);
      const std::int64_t pushed = pushed_ / plan_.slots + (slot < pushed_ % plan_.slots ? 1 : 0);
      file << rank_ << ' ' << slot << ' ' << pushed << ' ' << single_[at] << ' ' << double_[at] << '\n';
    }
    std::printf("medium %s\n", worker_.client.medium().c_str());
  }

  const Plan plan_;
  const int rank_;
  const std::int64_t elements_;
  const ps::Hyper hyper_{.lr = 1};
  std::int64_t pushed_ = 0;
  ps::JobWorker worker_;
  std::vector<float> single_ = std::vector<float>(static_cast<std::size_t>(elements_));
  std::vector<double> double_ = std::vector<double>(static_cast<std::size_t>(elements_));
  std::vector<float> single_gradient_ = single_;
  std::vector<double> double_gradient_ = double_;
};

// A FIFO that somebody writes a byte to when it is enough.
class Gate {
 public:
  explicit Gate(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Gate() { ::close(fd_); }
  bool is_open(int wait_ms) const {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, wait_ms) > 0;
  }

 private:
  int fd_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: push_ledger SLOTS MEDIUM BUDGET FOLDER\n");
    return 2;
  }
  const Plan plan{std::atoll(argv[1]), std::string(argv[2]) == "tcp", std::strtoull(argv[3], nullptr, 10), argv[4]};
  try {
    const Environment environment = read_environment();
    Worker worker(environment, plan);
    const Gate gate(plan.folder + "/gate." + std::to_string(environment.rank));
    while (!gate.is_open(worker.pushed() < kRounds * plan.slots ? 0 : -1)) {
      worker.push();
    }
    worker.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "push_ledger: %s\n", error.what());
    return 1;
  }
  return 0;
}
