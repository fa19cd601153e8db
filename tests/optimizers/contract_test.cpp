#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "csrc/base/log.h"
#include "csrc/model/torch_compat.h"
#include "optimizers/downpour_sgd.h"
#include "optimizers/samples.h"
#include "tests/optimizers/models.h"

// What DownpourSGD does to a module, and what it refuses.
namespace downpour {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using torch::optim::SGDOptions;

template <typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.msg();
  }
  return "no error";
}

void backward(testing::Mlp& net, std::int64_t batch = 0) {
  testing::loss_of(net, testing::make_batch(batch)).backward();
}

struct CountingHook : compat::PostAccumulateHook {
  explicit CountingHook(int& count) : calls(count) {}
  void operator()(const Tensor&) override { ++calls; }
  int& calls;
};

// ---- what it does to the module -----------------------------------------------------------------------------------------

TEST(Contract, LeavesTheModuleAsItWas) {
  const auto net = testing::make_mlp();
  int foreign_calls = 0;
  compat::set_post_accumulate_hook(net->first->weight, std::make_unique<CountingHook>(foreign_calls));
  const auto* foreign = compat::post_accumulate_hook(net->first->weight).get();
  std::vector<const void*> storages;
  for (const Tensor& p : net->parameters()) {
    storages.push_back(p.const_data_ptr());
  }
  {
    DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().overlap(true));
    testing::train(*net, downpour, {.steps = 3});
    EXPECT_EQ(foreign_calls, 3) << "a hook that was there before goes on";
  }
  backward(*net);
  EXPECT_EQ(foreign_calls, 4);
  EXPECT_EQ(compat::post_accumulate_hook(net->first->weight).get(), foreign);
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    const Tensor p = net->parameters()[i];
    EXPECT_EQ(p.const_data_ptr(), storages[i]);
    EXPECT_TRUE(p.requires_grad() && p.is_leaf());
    EXPECT_TRUE(i == 0 || compat::post_accumulate_hook(p) == nullptr);
  }
}

TEST(Contract, InstallsNoHookWithoutOverlap) {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  for (const Tensor& p : net->parameters()) {
    EXPECT_EQ(compat::post_accumulate_hook(p), nullptr);
  }
}

TEST(Contract, UpdatesAreSeenByAutograd) {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  backward(*net);
  const Tensor loss = testing::loss_of(*net, testing::make_batch(1));
  downpour.step();
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(Contract, AHookPutAroundOursOutlivesTheOptimizer) {
  struct Around : compat::PostAccumulateHook {
    explicit Around(std::unique_ptr<compat::PostAccumulateHook> hook) : inner(std::move(hook)) {}
    void operator()(const Tensor& tensor) override { (*inner)(tensor); }
    std::unique_ptr<compat::PostAccumulateHook> inner;
  };
  const auto net = testing::make_mlp();
  {
    DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().overlap(true));
    auto ours = std::move(compat::post_accumulate_hook(net->first->weight));
    compat::set_post_accumulate_hook(net->first->weight, std::make_unique<Around>(std::move(ours)));
  }
  backward(*net);
  EXPECT_TRUE(net->first->weight.grad().defined());
}

// ---- overlap ----------------------------------------------------------------------------------------------------------------

TEST(Overlap, RefusesGradientsEditedAfterTheyLeft) {
  const std::vector<std::function<void(testing::Mlp&)>> edits = {
      [](testing::Mlp& net) { net.first->bias.mutable_grad().add_(1); },
      [](testing::Mlp& net) { net.first->bias.mutable_grad() = torch::ones({16}); },
      [](testing::Mlp& net) { net.first->bias.mutable_grad().reset(); },
      [](testing::Mlp& net) { torch::nn::utils::clip_grad_norm_(net.first->bias, 1e-3); }};
  for (const auto& edit : edits) {
    const auto net = testing::make_mlp();
    DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().overlap(true));
    const Tensor before = net->first->weight.detach().clone();
    backward(*net);
    edit(*net);
    EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("'first.bias': its .grad was changed"));
    EXPECT_TRUE(torch::equal(net->first->weight, before)) << "nothing happened";
    downpour.zero_grad();
    backward(*net);
    EXPECT_NO_THROW(downpour.step()) << "usable afterwards";
  }
}

// clip_grad_value_ leaves the version counter and all values but outliers as they are.
TEST(Overlap, RefusesGradientsClippedByValue) {
  const Tensor parameter = torch::zeros({64, 64}, torch::requires_grad());
  Tensor scale = torch::full({64 * 64}, 1e-3);
  scale[7] = 100;
  DownpourSGD downpour({parameter}, SGDOptions(0.1), DownpourOptions().overlap(true));
  (parameter.flatten() * scale).sum().backward();
  torch::nn::utils::clip_grad_value_(parameter, 1);
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("its .grad was changed"));
}

// Where the values cannot be read as one piece, as those on a device, sums over them are compared.
TEST(Overlap, RefusesScatteredGradientsThatWereClipped) {
  const Tensor parameter = torch::zeros({8, 8}, torch::requires_grad());
  DownpourSGD downpour({parameter}, SGDOptions(0.1), DownpourOptions().overlap(true));
  for (const bool clips : {false, true}) {
    parameter.mutable_grad() = torch::zeros({8, 16}).slice(1, 0, 16, 2);
    parameter.sum().backward();
    ASSERT_FALSE(parameter.grad().is_non_overlapping_and_dense());
    if (clips) {
      torch::nn::utils::clip_grad_norm_(parameter, 0.5);
      EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("its .grad was changed"));
    } else {
      EXPECT_NO_THROW(downpour.step());
    }
  }
}

TEST(Overlap, AccumulationNeedsNoSync) {
  const auto theirs = testing::make_mlp();
  const auto ours = testing::make_mlp();
  torch::optim::SGD sgd(theirs->parameters(), SGDOptions(0.1));
  DownpourSGD downpour(*ours, SGDOptions(0.1), DownpourOptions().overlap(true));
  backward(*theirs, 0);
  backward(*theirs, 1);
  sgd.step();
  {
    const auto no_sync = downpour.no_sync();
    backward(*ours, 0);
  }
  backward(*ours, 1);
  downpour.step();
  EXPECT_TRUE(testing::bitwise_equal(theirs->parameters(), ours->parameters()));

  downpour.zero_grad();
  backward(*ours, 0);
  backward(*ours, 1);
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("left 2 times before one step()"));
}

// ---- what it refuses ------------------------------------------------------------------------------------------------------

TEST(Refusals, ParametersAddedLater) {
  const auto net = testing::make_mlp();
  const auto other = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  downpour.add_param_group(torch::optim::OptimizerParamGroup(other->parameters()));
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("'group 1, parameter 0': was added after"));

  DownpourSGD second(*net, SGDOptions(0.1));
  second.add_parameters({other->first->weight});
  EXPECT_THAT(message_of([&] { second.step(); }), HasSubstr("'group 0, parameter 4': was added after"));
}

TEST(Refusals, ModuleThatGrew) {
  const auto net = testing::make_mlp();
  net->second->bias.requires_grad_(false);
  DownpourSGD downpour(*net, SGDOptions(0.1));
  backward(*net);
  downpour.step();
  net->register_module("third", torch::nn::Linear(2, 2));
  const auto steps = [&] {
    for (int i = 0; i < 16; ++i) {
      downpour.step();
    }
  };
  EXPECT_THAT(message_of(steps), HasSubstr("'third.weight' [2, 2]: was added to the module"));
  net->unregister_module("third");
  net->second->bias.requires_grad_(true);
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("'second.bias': requires grad now"));
}

TEST(Refusals, ChangedDtypeAndSparseGradients) {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  net->first->to(torch::kDouble);
  EXPECT_THAT(message_of([&] { downpour.step(); }),
              HasSubstr("'first.weight': its dtype was Float when DownpourSGD was made and is Double"));
  net->first->to(torch::kFloat);
  EXPECT_NO_THROW(downpour.step());

  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  DownpourSGD sparse(*table, SGDOptions(0.1));
  table(torch::tensor({1, 2})).sum().backward();
  EXPECT_THAT(message_of([&] { sparse.step(); }), HasSubstr("'weight': its gradient is sparse"));
}

TEST(Refusals, OptionsOutOfRangeByName) {
  const auto net = testing::make_mlp();
  const auto make = [&](SGDOptions rule, DownpourOptions options) {
    return message_of([&] { DownpourSGD(*net, rule, options); });
  };
  EXPECT_THAT(make(SGDOptions(-1), {}), HasSubstr("Invalid learning rate: -1"));
  EXPECT_THAT(make(SGDOptions(1), DownpourOptions().n_push(0)), HasSubstr("n_push: expected 1 to"));
  EXPECT_THAT(make(SGDOptions(1), DownpourOptions().n_fetch(0)), HasSubstr("n_fetch: expected 1 to"));
  EXPECT_THAT(make(SGDOptions(1), DownpourOptions().local_lr(-1)), HasSubstr("local_lr"));
  EXPECT_THAT(make(SGDOptions(1), DownpourOptions().max_lead(-1)), HasSubstr("max_lead"));

  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters(), std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THAT(message_of([&] { DownpourSGD(groups, SGDOptions(1)); }),
              HasSubstr("parameter group 0: its options are not those of SGD"));
  std::vector<torch::optim::OptimizerParamGroup> twice;
  twice.emplace_back(net->first->parameters());
  twice.emplace_back(net->parameters());
  EXPECT_THAT(message_of([&] { DownpourSGD(twice, SGDOptions(1)); }),
              HasSubstr("'group 1, parameter 0': is in group 0 too"));
}

// ---- groups of a module ---------------------------------------------------------------------------------------------------

std::vector<torch::optim::OptimizerParamGroup> groups_of(const testing::Mlp& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net.second->parameters(), std::make_unique<SGDOptions>(0.01));
  groups.emplace_back(net.first->parameters());
  return groups;
}

TEST(GroupsOfAModule, EqualTorch) {
  const auto ours = testing::make_mlp();
  const auto theirs = testing::make_mlp();
  DownpourSGD downpour(*ours, groups_of(*ours), SGDOptions(0.1));
  torch::optim::SGD torch(groups_of(*theirs), SGDOptions(0.1));
  testing::train(*ours, downpour, {.steps = 3});
  testing::train(*theirs, torch, {.steps = 3});
  for (std::size_t i = 0; i < ours->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(ours->parameters()[i], theirs->parameters()[i])) << i;
  }
}

TEST(GroupsOfAModule, AreCalledByItsNamesAndKnowItsBuffers) {
  torch::manual_seed(1);
  const auto net = std::make_shared<testing::Mlp>(torch::nn::BatchNorm1d(16));
  auto groups = groups_of(*net);
  EXPECT_THAT(message_of([&] { DownpourSGD(*net, groups, SGDOptions(0.1)); }),
              HasSubstr("'norm.weight': requires grad and is in no parameter group"));
  groups.emplace_back(net->norm->parameters());
  DownpourSGD downpour(*net, groups, SGDOptions(0.1), DownpourOptions().buffers(BufferPolicy::kShared));
  net->to(torch::kDouble);
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("parameter 'second.weight': its dtype was"));
}

TEST(GroupsOfAModule, AloneHaveNoBuffersToShare) {
  const auto net = testing::make_mlp();
  const auto options = DownpourOptions().buffers(BufferPolicy::kShared);
  EXPECT_THAT(message_of([&] { DownpourSGD(groups_of(*net), SGDOptions(0.1), options); }),
              HasSubstr("expected a constructor that is given the module"));
  EXPECT_THAT(message_of([&] { DownpourSGD(net->parameters(), SGDOptions(0.1), options); }),
              HasSubstr("expected a constructor that is given the module"));
}

TEST(Refusals, SeveralProcessesOfAnotherLauncher) {
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  const auto net = testing::make_mlp();
  EXPECT_THAT(message_of([&] { DownpourSGD(*net, SGDOptions(0.1)); }),
              HasSubstr("`downpour run --servers 1 --workers 2 -- program`"));
  ::setenv("WORLD_SIZE", "many", 1);
  EXPECT_THAT(message_of([&] { DownpourSGD(*net, SGDOptions(0.1)); }), HasSubstr("WORLD_SIZE"));
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST(Refusals, HalfOfWhatServePrinted) {
  ::setenv("DOWNPOUR_COORDINATOR", "127.0.0.1:9", 1);
  const auto net = testing::make_mlp();
  EXPECT_THAT(message_of([&] { DownpourSGD(*net, SGDOptions(0.1)); }),
              HasSubstr("DOWNPOUR_COORDINATOR set, but not DOWNPOUR_ROLE, DOWNPOUR_JOB, DOWNPOUR_SERVERS"));
  ::unsetenv("DOWNPOUR_COORDINATOR");
}

TEST(Refusals, StepAfterFinish) {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(0.1));
  downpour.finish();
  EXPECT_THAT(message_of([&] { downpour.step(); }), HasSubstr("finish() was called"));
  EXPECT_THAT(message_of([&] { Samples(downpour, 10); }), HasSubstr("finish() was called"));
}

TEST(Refusals, AForkedChild) {
  const auto net = testing::make_mlp();
  auto downpour = std::make_unique<DownpourSGD>(*net, SGDOptions(0.1));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool named = message_of([&] { downpour->step(); }).find("forked child of process") != std::string::npos;
    downpour.reset();
    ::_exit(named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Refusals, TorchLoadIsTakenInAWorldOfOneAndSaidElsewhere) {
  static std::string logged;
  logged.clear();
  set_log_sink([](LogLevel, std::string_view line) { logged += line; });
  for (const std::int64_t n_fetch : {1, 2}) {
    const auto net = testing::make_mlp();
    const auto other = testing::make_mlp(3);
    DownpourSGD downpour(*net, SGDOptions(0.1), DownpourOptions().n_fetch(n_fetch));
    net->first->bias.set_data(other->first->bias.detach().clone());
    downpour.step();
    downpour.step();
    EXPECT_EQ(torch::equal(net->first->bias, other->first->bias), n_fetch == 1);
    EXPECT_EQ(logged.find("'first.bias' has new storage") != std::string::npos, n_fetch == 2) << logged;
  }
  set_log_sink(nullptr);
}

TEST(Refusals, NumbersBeyondWhatTheyAreKeptIn) {
  const auto refusal_of = [](const DownpourOptions& options) {
    return message_of([&] { DownpourSGD(*testing::make_mlp(), SGDOptions(0.1), options); });
  };
  constexpr std::int64_t kTooMany = std::int64_t{1} << 31;
  EXPECT_THAT(refusal_of(DownpourOptions().warm_up_steps(kTooMany)),
              HasSubstr("warm_up_steps: expected 0 to 2147483647"));
  EXPECT_THAT(refusal_of(DownpourOptions().n_push(kTooMany)), HasSubstr("n_push: expected 1 to 2147483647"));
  EXPECT_THAT(refusal_of(DownpourOptions().max_lead(kTooMany)), HasSubstr("max_lead: expected 0 to 2147483647"));
  EXPECT_THAT(refusal_of(DownpourOptions().call_deadline(std::chrono::milliseconds::max())),
              HasSubstr("call_deadline: expected more than 0 ms and at most a year"));
}

// ---- Samples in a world of one ---------------------------------------------------------------------------------------------

TEST(SamplesAlone, ABatchLargerThanTheDataSetIsTheDataSet) {
  Tensor counts = torch::zeros({5}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{counts}, SGDOptions(1), DownpourOptions().n_push(2));
  Samples samples(downpour, 5, SamplesOptions().batch_size(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(samples.next()->indices.numel(), 5);
}

// Three steps a epoch, pushed after the second and the third: as with servers the third shows with the pull at the fourth.
TEST(SamplesAlone, ThePushOfAShortLeaseWaitsForThePull) {
  Tensor p = torch::zeros({1}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{p}, SGDOptions(1), DownpourOptions().n_push(2).n_fetch(2));
  Samples samples(downpour, 6, SamplesOptions().batch_size(2).epochs(2));
  std::vector<double> values;
  while (samples.next()) {
    downpour.zero_grad();
    p.sum().backward();
    downpour.step();
    values.push_back(p.item<double>());
  }
  EXPECT_EQ(values, (std::vector<double>{0, -2, -2, -3, -3, -6}));
}

TEST(SamplesAlone, GivesEverySampleOnceAnEpochInASeededOrder) {
  Tensor counts = torch::zeros({23}).requires_grad_(true);
  DownpourSGD downpour(std::vector<Tensor>{counts}, SGDOptions(1), DownpourOptions().n_push(2));
  Samples samples(downpour, 23, SamplesOptions().batch_size(4).epochs(3).seed(5));
  std::vector<std::vector<std::int64_t>> orders(3);
  while (const auto batch = samples.next()) {
    EXPECT_EQ(samples.epoch(), batch->epoch);
    EXPECT_LE(batch->indices.numel(), 4);
    auto& order = orders[static_cast<std::size_t>(batch->epoch)];
    for (std::int64_t i = 0; i < batch->indices.numel(); ++i) {
      order.push_back(batch->indices[i].item<std::int64_t>());
    }
    downpour.zero_grad();
    counts.index_select(0, batch->indices).sum().backward();
    downpour.step();
  }
  // The gradient of a sample's own weight is 1, the learning rate 1: the parameter counts, whatever the size of the last push.
  EXPECT_TRUE(torch::equal(counts, torch::full({23}, -3.0)));
  for (const auto& order : orders) {
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 23);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(SamplesAlone, EachBatchIsOneStep) {
  const auto net = testing::make_mlp();
  DownpourSGD downpour(*net, SGDOptions(1));
  Samples samples(downpour, 10, SamplesOptions().batch_size(4));
  ASSERT_TRUE(samples.next().has_value());
  EXPECT_THAT(message_of([&] { samples.next(); }), HasSubstr("expected one step() for the last batch, found 0"));
  downpour.step();
  downpour.step();
  EXPECT_THAT(message_of([&] { samples.next(); }), HasSubstr("found 2"));
}

}  // namespace
}  // namespace downpour
