// DistributedDataParallel beside the same two processes without it: they take turns (A B A B) in one run, with the same optimizer,
// zero_grad and memory settings, one thread each. What is left is what the reduction of the gradients costs.
#include <torch/torch.h>

#include "backends/distributed_data_parallel.h"
#include "csrc/base/malloc_settings.h"
#include "examples/fashion_mnist/fashion.h"
#include "tests/bench/bench.h"
#include "tests/bench/ranks.h"

namespace {

using namespace downpour;
using namespace downpour::bench;

constexpr int kRounds = 21;
constexpr int kWarm = 3;
constexpr int kSteps = 4;  // a round
constexpr std::int64_t kBatch = 64;

// 7.5 million parameters.
torch::nn::Sequential make_mlp() {
  return torch::nn::Sequential(torch::nn::Linear(784, 4096), torch::nn::ReLU(), torch::nn::Linear(4096, 1024),
                               torch::nn::ReLU(), torch::nn::Linear(1024, 10));
}

template <typename Model>
class Training {
 public:
  Training(Model model, torch::Tensor x)
      : model_(std::move(model)), x_(std::move(x)), y_(torch::arange(kBatch).remainder(10)) {}

  Model& model() { return model_; }
  void step() {
    optimizer_.zero_grad();
    torch::cross_entropy_loss(model_->forward(x_), y_).backward();
    optimizer_.step();
  }
  double milliseconds_of_a_step(c10d::ProcessGroup& group) {
    group.barrier()->wait();
    const double begin = now_s();
    for (int i = 0; i < kSteps; ++i) {
      step();
    }
    group.barrier()->wait();  // both ranks' steps
    return (now_s() - begin) * 1e3 / kSteps;
  }

 private:
  Model model_;
  torch::Tensor x_, y_;
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)};
};

template <typename MakeModel>
void measure(const Rank& self, const std::string& name, const MakeModel& make_model, const torch::Tensor& x,
             double least_efficiency) {
  const std::string efficiency = "ddp.efficiency_2ranks." + name, overhead = "ddp.overhead_ms." + name;
  if (!is_any_wanted({efficiency, overhead})) {
    return;
  }
  const auto backend = self.group(name, transport::SharedMemory::kRequire);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(self.place(name), self.rank, self.world);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  Training plain(make_model(), x), together(make_model(), x);
  const DistributedDataParallel ddp(*together.model(), group);
  Rounds alone, with_ddp, difference;
  for (int round = -kWarm; round < kRounds; ++round) {
    const double without = plain.milliseconds_of_a_step(*group);
    const double with = together.milliseconds_of_a_step(*group);
    if (round >= 0) {
      alone.add(without);
      with_ddp.add(with);
      difference.add(with - without);
    }
  }
  if (self.rank == 0) {
    Line::quotient(efficiency, alone, with_ddp, Better::kLess)
        .add("ms", with_ddp.median())
        .add("peer", "side by side without")
        .add("peer_ms", alone.median())
        .at_least(least_efficiency)
        .print();
    Line(overhead, difference, Better::kLess, "ms").at_most(10).print();
  }
}

}  // namespace

int main(int argc, char** argv) {
  take_filter(argc, argv);
  keep_freed_memory();
  as_ranks(2, [](const Rank& self) {
    measure(self, "mlp", make_mlp, torch::randn({kBatch, 784}), 0.80);
    measure(
        self, "cnn", [] { return fashion::Net(); }, torch::randn({kBatch, 1, 28, 28}), 0.97);
  });
}
