#include "backends/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "csrc/base/error.h"
#include "csrc/model/torch_compat.h"
#include "tests/backends/rank_threads.h"

namespace downpour::backends {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using Options = DistributedDataParallelOptions;
using torch::Tensor;

constexpr std::int64_t kBatch = 12;  // of all ranks together: divides by 1, 2, 3 and 4

struct Net : torch::nn::Module {
  explicit Net(std::int64_t hidden = 32, bool with_norm = false) {
    first = register_module("first", torch::nn::Linear(8, hidden));
    if (with_norm) {
      norm = register_module("norm", torch::nn::BatchNorm1d(hidden));
    }
    extra = register_module("extra", torch::nn::Linear(hidden, hidden));
    last = register_module("last", torch::nn::Linear(hidden, 3));
    const torch::NoGradGuard no_grad;  // values without a random generator, which threads would share
    for (const Tensor& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) * 1.7).view(parameter.sizes()) * 0.3);
    }
  }
  Tensor forward(const Tensor& x, bool with_extra = true) {
    Tensor h = first(x);
    h = torch::relu(norm ? norm(h) : h);
    h = with_extra ? torch::tanh(extra(h)) : h;
    return last(h);
  }
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

struct Batch {
  Tensor x, y;
};
Batch batch_of(int step) {
  const Tensor numbers = torch::arange(kBatch * 8, torch::kFloat).view({kBatch, 8});
  return {torch::sin(numbers * 0.37 + step), torch::arange(kBatch).remainder(3)};
}
Batch part_of(const Batch& batch, int rank, int world) {
  const std::int64_t share = kBatch / world;
  return {batch.x.narrow(0, rank * share, share), batch.y.narrow(0, rank * share, share)};
}
Tensor loss_of(Net& net, const Batch& batch, bool with_extra = true) {
  return torch::cross_entropy_loss(net.forward(batch.x, with_extra), batch.y);
}

std::vector<Tensor> values_of(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) {
    result.push_back(parameter.detach().clone());
  }
  return result;
}
std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& parameter : module.parameters()) {
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  }
  return result;
}

void expect_close(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, double tolerance = 1e-6) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (found[i].defined() && found[i].numel() > 0) {
      const double scale = std::max(1e-3, expected[i].abs().max().item<double>());
      EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), tolerance * scale) << "parameter " << i;
    }
  }
}

// Checks that all ranks hand in the same bits.
class SameBits {
 public:
  void add(const std::vector<Tensor>& tensors) {
    const std::scoped_lock lock(mutex_);
    if (first_.empty()) {
      first_ = tensors;
      return;
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(first_[i].defined() == tensors[i].defined() &&
                  (!first_[i].defined() || torch::equal(first_[i], tensors[i])))
          << i;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Tensor> first_;
};

template <typename MakeOptimizer>
std::vector<Tensor> train(Net& net, const MakeOptimizer& make_optimizer, int steps, int rank = 0, int world = 1,
                          bool set_to_none = true) {
  auto optimizer = make_optimizer(net.parameters());
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad(set_to_none);
    loss_of(net, part_of(batch_of(step), rank, world)).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5);
    optimizer->step();
  }
  return values_of(net);
}

// ---- equal to one process --------------------------------------------------------------------------------------------------------

class Worlds : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  void with_groups(const std::function<void(const GroupPtr& group)>& part) {
    backends::with_groups(kind(), world(), part);
  }
};

TEST_P(Worlds, GradientsAreThoseOfOneProcessOnTheJoinedBatch) {
  Net alone;
  loss_of(alone, batch_of(0)).backward();
  const auto expected = gradients_of(alone);
  SameBits bits;
  with_groups([&](const GroupPtr& group) {
    Net net;
    const DistributedDataParallel ddp(net, group);
    loss_of(net, part_of(batch_of(0), group->getRank(), world())).backward();
    expect_close(gradients_of(net), expected);
    bits.add(gradients_of(net));
  });
}

TEST_P(Worlds, TrainingWithClippingIsThatOfOneProcess) {
  const auto sgd = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto adam = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  };
  for (const bool set_to_none : {true, false}) {
    Net one, two;
    const auto with_sgd = train(one, sgd, 5, 0, 1, set_to_none);
    const auto with_adam = train(two, adam, 5, 0, 1, set_to_none);
    SameBits sgd_bits, adam_bits;
    with_groups([&](const GroupPtr& group) {
      Net net, other;
      const DistributedDataParallel ddp(net, group, Options().first_bucket_mb(0.001).bucket_mb(0.003));
      const DistributedDataParallel other_ddp(other, group);
      const auto trained = train(net, sgd, 5, group->getRank(), world(), set_to_none);
      expect_close(trained, with_sgd, 1e-5);
      sgd_bits.add(trained);
      const auto trained_by_adam = train(other, adam, 5, group->getRank(), world(), set_to_none);
      expect_close(trained_by_adam, with_adam, 1e-3);  // its first steps are signs of gradients
      adam_bits.add(trained_by_adam);
    });
  }
}

TEST_P(Worlds, AccumulationUnderNoSyncIsThatOfOneProcess) {
  Net alone;
  for (int step = 0; step < 3; ++step) {
    loss_of(alone, batch_of(step)).backward();
  }
  const auto expected = gradients_of(alone);
  for (const bool set_to_none : {true, false}) {
    with_groups([&](const GroupPtr& group) {
      Net net;
      DistributedDataParallel ddp(net, group);
      torch::optim::SGD optimizer(net.parameters(), 0.0);
      for (int round = 0; round < 2; ++round) {
        optimizer.zero_grad(set_to_none);
        {
          const auto no_sync = ddp.no_sync();
          loss_of(net, part_of(batch_of(0), group->getRank(), world())).backward();
          loss_of(net, part_of(batch_of(1), group->getRank(), world())).backward();
        }
        loss_of(net, part_of(batch_of(2), group->getRank(), world())).backward();
        expect_close(gradients_of(net), expected);
      }
      EXPECT_EQ(ddp.passes(), world() == 1 ? 0u : 2u);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Media, Worlds,
                         testing::Combine(testing::Values(Kind::kSharedMemory, Kind::kTcp),
                                          testing::Values(1, 2, 3, 4)),
                         [](const auto& tested) {
                           return name(std::get<0>(tested.param)) + "_" + std::to_string(std::get<1>(tested.param));
                         });

void with_two(const std::function<void(const GroupPtr& group, int rank)>& part) {
  with_groups(Kind::kSharedMemory, 2, [&](const GroupPtr& group) { part(group, group->getRank()); });
}

TEST(Reducer, OverOurGroupComesToTheSameGradients) {
  with_two([](const GroupPtr& group, int rank) {
    Net net, other;
    const DistributedDataParallel ddp(net, group);
    loss_of(net, part_of(batch_of(0), rank, 2)).backward();

    const auto parameters = other.parameters();
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {1 << 20, 25 << 20},
                                                                       std::vector<bool>(parameters.size(), false)));
    std::ranges::reverse(buckets);
    std::unordered_map<std::size_t, std::string> names;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      names[i] = std::to_string(i);
    }
    c10d::Reducer reducer(parameters, buckets, group, std::vector<bool>(parameters.size(), false), 25 << 20, false,
                          false, names, 1 << 20, false, false, std::vector<std::int64_t>{});
    reducer.prepare_for_forward();
    const Tensor loss = loss_of(other, part_of(batch_of(0), rank, 2));
    reducer.prepare_for_backward({});
    loss.backward();
    expect_close(gradients_of(net), gradients_of(other));
  });
}

// ---- parameters of all kinds -------------------------------------------------------------------------------------------------------

TEST(Unused, ParametersGetTheMeanWhereSomeRankUsedThemAndNothingWhereNone) {
  Net alone;
  (loss_of(alone, part_of(batch_of(0), 0, 2), true) / 2 + loss_of(alone, part_of(batch_of(0), 1, 2), false) / 2)
      .backward();
  const auto expected = gradients_of(alone);
  with_two([&](const GroupPtr& group, int rank) {
    Net net;
    const DistributedDataParallel ddp(net, group);
    for (int round = 0; round < 3; ++round) {
      net.zero_grad();
      loss_of(net, part_of(batch_of(0), rank, 2), rank == 0).backward();
      expect_close(gradients_of(net), expected);
      net.zero_grad();
      loss_of(net, part_of(batch_of(0), rank, 2), false).backward();
      EXPECT_FALSE(net.extra->weight.grad().defined());
      EXPECT_TRUE(net.last->weight.grad().defined());
    }
  });
}

TEST(Parameters, FrozenSharedAndEmptyOnesAreAsInOneProcess) {
  struct Odd : torch::nn::Module {
    Odd() {
      shared = register_parameter("a", torch::ones({3, 3}));
      register_parameter("b", shared);
      frozen = register_parameter("frozen", torch::ones({3}), false);
      empty = register_parameter("empty", torch::ones({0, 3}));
      half = register_parameter("half", torch::ones({3}, torch::kBFloat16));
      wide = register_parameter("wide", torch::ones({3}, torch::kDouble));
    }
    Tensor forward(const Tensor& x) {
      return (torch::mm(torch::mm(x, shared), shared) + frozen).sum() + empty.sum() + (half * 2).sum() +
             (wide * x.sum().to(torch::kDouble)).sum();
    }
    Tensor shared, frozen, empty, half, wide;
  };
  with_two([](const GroupPtr& group, int rank) {
    Odd alone, odd;
    const DistributedDataParallel ddp(odd, group);
    const auto x = [](int of) { return torch::full({2, 3}, of + 1.0f); };
    ((alone.forward(x(0)) + alone.forward(x(1))) / 2).backward();
    odd.forward(x(rank)).backward();
    EXPECT_THAT(ddp.bucket_bytes(), SizeIs(3));
    EXPECT_TRUE(torch::allclose(odd.shared.grad(), alone.shared.grad()));
    EXPECT_FALSE(odd.frozen.grad().defined());
    EXPECT_EQ(odd.empty.grad().numel(), 0);
    EXPECT_TRUE(torch::allclose(odd.half.grad(), alone.half.grad()));
    EXPECT_TRUE(torch::allclose(odd.wide.grad(), alone.wide.grad()));
  });
}

TEST(Construction, TakesRank0sValues) {
  with_two([](const GroupPtr& group, int rank) {
    Net net(16, true);
    const torch::NoGradGuard no_grad;
    net.first->weight.fill_(rank + 1);
    net.norm->running_mean.fill_(rank + 1);
    const DistributedDataParallel ddp(net, group);
    EXPECT_TRUE(net.first->weight.eq(1).all().item<bool>());
    EXPECT_TRUE(net.norm->running_mean.eq(1).all().item<bool>());
  });
}

TEST(Construction, NamesTheFirstParameterThatDiffersOnEveryRank) {
  std::atomic<int> heard{0};
  with_groups(Kind::kSharedMemory, 3, [&](const GroupPtr& group) {
    Net net(group->getRank() == 2 ? 16 : 32);
    EXPECT_THAT(error_of([&] { DistributedDataParallel(net, group); }),
                AllOf(HasSubstr("parameter 'first.weight' Float [32, 8], trained on rank 0"),
                      HasSubstr("'first.weight' Float [16, 8], trained on rank 2")));
    ++heard;
  });
  EXPECT_EQ(heard, 3);
}

TEST(Construction, RefusesWhatCannotBe) {
  with_two([](const GroupPtr& group, int) {
    torch::nn::Module empty;
    EXPECT_THAT(error_of([&] { DistributedDataParallel(empty, group); }),
                HasSubstr("no parameter that requires a gradient"));
    Net net;
    EXPECT_THAT(error_of([&] { DistributedDataParallel(net, group, Options().bucket_mb(0)); }),
                HasSubstr("bucket_mb 0"));
  });
}

// ---- buckets -------------------------------------------------------------------------------------------------------------------------

TEST(Buckets, FollowTheOrderOfTheFirstPassAndStay) {
  struct Backwards : torch::nn::Module {
    Backwards() {
      late = register_module("late", torch::nn::Linear(8, 4));
      early = register_module("early", torch::nn::Linear(8, 8));
    }
    Tensor forward(const Tensor& x) { return late(early(x)).sum(); }
    torch::nn::Linear late{nullptr}, early{nullptr};
  };
  with_two([](const GroupPtr& group, int rank) {
    Backwards net;
    const DistributedDataParallel ddp(net, group, Options().first_bucket_mb(1e-6).bucket_mb(1e-6));
    const auto before = ddp.bucket_bytes();
    const auto x = [](int of) { return torch::full({2, 8}, of + 1.0f); };
    std::vector<std::int64_t> after;
    for (int round = 0; round < 3; ++round) {
      net.zero_grad();
      net.forward(x(rank)).backward();
      EXPECT_EQ(round == 0 || after == ddp.bucket_bytes(), true);
      after = ddp.bucket_bytes();
    }
    EXPECT_THAT(before, SizeIs(4));
    EXPECT_THAT(after, SizeIs(4));
    EXPECT_NE(before, after);
  });
}

// ---- mistakes --------------------------------------------------------------------------------------------------------------------------

TEST(Mistakes, ASecondPassWithoutZeroGradIsRefusedByName) {
  with_two([](const GroupPtr& group, int rank) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const Batch batch = part_of(batch_of(0), rank, 2);
    loss_of(net, batch).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.1);
    EXPECT_THAT(error_of([&] { loss_of(net, batch).backward(); }),
                AllOf(HasSubstr("parameter '"), HasSubstr("zero_grad()")));
    const auto under_no_sync = [&] {
      const auto no_sync = ddp.no_sync();
      loss_of(net, batch).backward();
    };
    EXPECT_THAT(error_of(under_no_sync), HasSubstr("zero_grad()"));
    net.zero_grad();
    loss_of(net, batch).backward();
    EXPECT_EQ(ddp.passes(), 2u);
  });
}

TEST(Mistakes, AParameterThatBecameAnotherIsNamed) {
  with_two([](const GroupPtr& group, int rank) {
    Net net;
    const DistributedDataParallel ddp(net, group);
    net.to(torch::kDouble);
    const Batch batch = part_of(batch_of(0), rank, 2);
    EXPECT_THAT(error_of([&] {
                  loss_of(net, {batch.x.to(torch::kDouble), batch.y}).backward();
                }),
                AllOf(HasSubstr("'last."), HasSubstr("Double")));
  });
}

TEST(Mistakes, ASparseGradientIsRefused) {
  struct Sparse : torch::nn::Module {
    Sparse() { table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true))); }
    torch::nn::Embedding table{nullptr};
  };
  with_two([](const GroupPtr& group, int) {
    Sparse net;
    const DistributedDataParallel ddp(net, group);
    EXPECT_THAT(error_of([&] { net.table(torch::arange(2)).sum().backward(); }), HasSubstr("'table.weight'"));
  });
}

// ---- endings ---------------------------------------------------------------------------------------------------------------------------

TEST(Detached, TheModuleIsAsItWas) {
  with_two([](const GroupPtr& group, int rank) {
    Net net;
    {
      DistributedDataParallel ddp(net, group);
      loss_of(net, part_of(batch_of(0), rank, 2)).backward();
      ddp.detach();
      ddp.detach();
    }
    for (const Tensor& parameter : net.parameters()) {
      EXPECT_EQ(compat::post_accumulate_hook(parameter), nullptr);
    }
    net.zero_grad();
    Net alone;
    loss_of(net, batch_of(rank)).backward();
    loss_of(alone, batch_of(rank)).backward();
    expect_close(gradients_of(net), gradients_of(alone), 0);
  });
}

TEST(Detached, GradientsOutliveEverything) {
  std::vector<std::vector<Tensor>> kept(2);
  std::vector<std::vector<Tensor>> copies(2);
  with_two([&](const GroupPtr& group, int rank) {
    Net net;
    const DistributedDataParallel ddp(net, group);
    loss_of(net, part_of(batch_of(0), rank, 2)).backward();
    const auto place = static_cast<std::size_t>(rank);
    copies[place] = gradients_of(net);
    for (const Tensor& parameter : net.parameters()) {
      kept[place].push_back(parameter.grad());
    }
  });
  for (const std::size_t rank : {0, 1}) {
    expect_close(kept[rank], copies[rank], 0);
  }
}

TEST(Lost, ARankInMidPassIsAnErrorAndGradientsStayReadable) {
  std::atomic<int> heard{0};
  std::promise<void> left;
  const auto has_left = left.get_future().share();
  with_groups(Kind::kSharedMemory, 3, [&](const GroupPtr& group) {
    Net net;
    const DistributedDataParallel ddp(net, group);
    loss_of(net, part_of(batch_of(0), group->getRank(), 3)).backward();
    net.zero_grad(false);
    if (group->getRank() == 1) {
      group->shutdown();
      left.set_value();
      return;
    }
    has_left.wait();
    EXPECT_THAT(error_of([&] { loss_of(net, part_of(batch_of(1), group->getRank(), 3)).backward(); }),
                HasSubstr("rank 1"));
    for (const Tensor& gradient : gradients_of(net)) {
      gradient.fill_(1);
    }
    ++heard;
  });
  EXPECT_EQ(heard, 2);
}

// ---- policies ---------------------------------------------------------------------------------------------------------------------------

TEST(Buffers, FollowTheirPolicy) {
  std::map<DdpBuffers, std::vector<double>> means;
  for (const DdpBuffers policy : {DdpBuffers::kFromRank0, DdpBuffers::kMean, DdpBuffers::kLocal}) {
    std::vector<double> found(2);
    with_two([&](const GroupPtr& group, int rank) {
      Net net(16, true);
      const DistributedDataParallel ddp(net, group, Options().buffers(policy));
      loss_of(net, part_of(batch_of(0), rank, 2)).backward();
      found[static_cast<std::size_t>(rank)] = net.norm->running_mean.sum().item<double>();
    });
    means[policy] = found;
  }
  const auto& own = means[DdpBuffers::kLocal];
  EXPECT_NE(own[0], own[1]);
  EXPECT_EQ(means[DdpBuffers::kFromRank0], (std::vector<double>{own[0], own[0]}));
  EXPECT_EQ(means[DdpBuffers::kMean][0], means[DdpBuffers::kMean][1]);
  EXPECT_NEAR(means[DdpBuffers::kMean][0], (own[0] + own[1]) / 2, 1e-6);
}

TEST(Compressed, GradientsAreRoundedAndWhatIsLostComesLater) {
  struct One : torch::nn::Module {
    One() { weight = register_parameter("weight", torch::zeros({64})); }
    Tensor weight;
  };
  for (const Compression compression : {Compression::kBfloat16, Compression::kFloat16}) {
    with_two([&](const GroupPtr& group, int rank) {
      One net;
      const DistributedDataParallel ddp(net, group, Options().compression(compression));
      // One rank alone has some: a sum of two would be rounded again, which no rank can feed back.
      const Tensor mean = torch::linspace(0.1, 0.7, 64);
      const Tensor factors = mean * (rank == 0 ? 2 : 0);
      Tensor sum = torch::zeros({64}), last;
      for (int round = 0; round < 64; ++round) {
        net.zero_grad();
        (net.weight * factors).sum().backward();
        last = net.weight.grad().clone();
        sum += last;
      }
      EXPECT_FALSE(torch::equal(last, mean)) << "it is rounded";
      EXPECT_TRUE(torch::allclose(last, mean, 2e-2));
      // Without feedback the error of a step, up to 2^-9 of it, would be there in the mean as well.
      EXPECT_TRUE(torch::allclose(sum / 64, mean, 2e-4)) << (sum / 64 - mean).abs().max();
    });
  }
}

}  // namespace
}  // namespace downpour::backends
