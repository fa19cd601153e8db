// Parameters on a CUDA device train as on the CPU. Skipped where there is none; a build without CUDA compiles it too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optimizers/downpour_sgd.h"
#include "tests/optimizers/job.h"
#include "tests/optimizers/models.h"

namespace downpour {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using torch::Tensor;
using torch::optim::SGDOptions;

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
  }
  static std::shared_ptr<testing::Mlp> make_mlp() {
    auto net = testing::make_mlp();
    net->to(torch::kCUDA);
    return net;
  }
};

// The same tensor operations in the same order.
TEST_F(OnCuda, EmbeddedSgdEqualsTorchBitForBit) {
  for (const SGDOptions& options : {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01),
                                    SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.001),
                                    SGDOptions(0.05).momentum(0.8).nesterov(true)}) {
    const auto theirs = make_mlp();
    const auto ours = make_mlp();
    torch::optim::SGD sgd(theirs->parameters(), options);
    DownpourSGD downpour(*ours, options);
    testing::train(*theirs, sgd, {.accumulate = 2, .clip_norm = 0.2, .decay_every = 5});
    testing::train(*ours, downpour, {.accumulate = 2, .clip_norm = 0.2, .decay_every = 5});
    EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters())) << options.momentum();
    EXPECT_TRUE(ours->first->weight.is_cuda());
  }
}

template <typename Torch, typename Options>
void expect_close(const Options& options, testing::Mlp& theirs, testing::Mlp& ours) {
  Torch torchs(theirs.parameters(), options);
  DownpourSGD downpour(ours, options);
  testing::train(theirs, torchs, {});
  testing::train(ours, downpour, {});
  for (std::size_t i = 0; i < ours.parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(theirs.parameters()[i], ours.parameters()[i], 1e-4, 1e-6)) << i;
  }
}

TEST_F(OnCuda, EmbeddedRulesAreTorchs) {
  expect_close<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05).lr_decay(0.01), *make_mlp(), *make_mlp());
  expect_close<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true), *make_mlp(), *make_mlp());
  expect_close<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01), *make_mlp(), *make_mlp());
}

// One parameter whose gradient is 1, learning rate 1.
TEST_F(OnCuda, EmbeddedKnobsCountTheSameSteps) {
  Tensor p = torch::zeros({1}, torch::kCUDA).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1),
                       DownpourOptions().n_push(2).n_fetch(3).max_grad_norm(100));
  std::vector<double> values;
  for (int step = 0; step < 6; ++step) {
    downpour.zero_grad();
    p.sum().backward();
    downpour.step();
    values.push_back(p.item<double>());
  }
  EXPECT_EQ(values, (std::vector<double>{0, 0, -2, -2, -2, -6}));
  EXPECT_NEAR(downpour.stats().gradient_norm, 2, 1e-6);
}

// programs/train_worker.cpp: staged through pinned memory on the way out and back.
class OnCudaUnderServers : public OnCuda, public ::testing::WithParamInterface<std::string> {};

TEST_P(OnCudaUnderServers, OneWorkerIsCloseToTorch) {
  for (const char* servers : {"1", "2"}) {
    testing::JobRun run({"--servers", servers, "--workers", "1", "--quiet"}, "train_worker", {GetParam()});
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_THAT(run.output(), HasSubstr("equal over shm"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OnCudaUnderServers, ::testing::Values("cuda", "cuda_overlap", "cuda_summed"),
                         [](const auto& tested) { return tested.param; });

TEST_F(OnCuda, SharedBuffersBecomeTheMeanOfWhatTheWorkersSaw) {
  testing::JobRun run({"--servers", "1", "--workers", "2", "--quiet", "--max-restarts", "0"}, "buffer_worker",
                      {"apart", "cuda"});
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.after("as expected"), SizeIs(2));
}

}  // namespace
}  // namespace downpour
