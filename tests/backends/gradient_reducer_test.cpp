#include "backends/gradient_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "backends/distributed_data_parallel.h"
#include "csrc/base/error.h"
#include "csrc/model/gradient_hooks.h"
#include "tests/backends/rank_threads.h"

namespace downpour::backends {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Options = DistributedDataParallelOptions;
using torch::Tensor;

void with_two(const std::function<void(const GroupPtr& group, int rank)>& part) {
  with_groups(Kind::kSharedMemory, 2, [&](const GroupPtr& group) { part(group, group->getRank()); });
}

// Three parameters, each in a bucket of its own; gradients come from c to a, and are the factor.
struct Chain : torch::nn::Module {
  Chain() {
    for (const char* const name : {"a", "b", "c"}) {
      all.push_back(register_parameter(name, torch::zeros({4})));
    }
  }
  Tensor forward(double factor, std::size_t count = 3) const {
    Tensor x = torch::zeros({4});
    for (std::size_t i = 0; i < count; ++i) {
      x = x + factor * all[i];
    }
    return x.sum();
  }
  std::vector<Tensor> all;
};
Options small_buckets() { return Options().first_bucket_mb(1e-6).bucket_mb(1e-6); }

std::vector<double> gradients_of(const Chain& chain) {
  std::vector<double> result;
  for (const Tensor& parameter : chain.all) {
    result.push_back(parameter.grad().defined() ? parameter.grad()[3].item<double>() : -1);
  }
  return result;
}

// ---- passes that end early ---------------------------------------------------------------------------------------------------

TEST(GivenUp, APassEndsOnEveryRankAndTheNextIsRight) {
  for (const std::size_t where : {0, 1}) {  // c comes first: what fails before it is no pass
    with_two([&](const GroupPtr& group, int rank) {
      Chain chain;
      int failing = 0;
      // Under ours: it fails before the gradient has its place.
      const model::GradientHooks users({chain.all[where]}, [&](std::size_t) {
        if (--failing == 0) {
          throw std::logic_error("the user's own");
        }
      });
      const DistributedDataParallel ddp(chain, group, small_buckets());
      for (int round = 0; round < 4; ++round) {
        chain.zero_grad(round % 2 == 0);
        failing = rank == 0 && round % 2 == 1 ? 1 : 0;
        const std::string error = error_of([&] { chain.forward(rank + 1).backward(); });
        if (round % 2 == 0) {
          EXPECT_EQ(error, "");
          EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5)) << where << ", round " << round;
        } else if (rank == 0) {
          EXPECT_EQ(error, "the user's own");
        } else {
          EXPECT_THAT(error, HasSubstr("some rank ended early"));
        }
      }
      EXPECT_EQ(ddp.passes(), 2u);
    });
  }
}

struct Fails : torch::autograd::Function<Fails> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, const torch::autograd::tensor_list&) {
    throw std::logic_error("behind the last gradient");
  }
};

// All buckets of the failing rank have left: the others have what they need, and it takes part in the rest of the pass.
TEST(GivenUp, BehindTheLastGradientIsTooLateToBeAnErrorElsewhere) {
  with_two([&](const GroupPtr& group, int rank) {
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets());
    const Tensor input = torch::zeros({4}).requires_grad_(true);
    for (int round = 0; round < 3; ++round) {
      chain.zero_grad();
      Tensor x = rank == 0 && round < 2 ? Fails::apply(input) : input;
      const Tensor loss = (x * 0).sum() + chain.forward(rank + 1);
      const std::string error = error_of([&] { loss.backward(); });
      EXPECT_EQ(rank == 0 && round < 2, !error.empty()) << error;
    }
    EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5));
  });
}

TEST(GivenUp, BeforeTheFirstGradientIsNoPassOfThatRank) {
  with_two([&](const GroupPtr& group, int rank) {
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets());
    if (rank == 0) {
      EXPECT_THROW(Fails::apply(chain.forward(1)).backward(), std::logic_error);
    }
    chain.zero_grad();
    chain.forward(rank + 1).backward();
    EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5));
  });
}

TEST(GivenUp, OneRankThatForgetsZeroGradIsNoHang) {
  with_two([&](const GroupPtr& group, int rank) {
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets());
    chain.forward(rank + 1).backward();
    if (rank == 1) {
      chain.zero_grad();
    }
    EXPECT_THAT(error_of([&] { chain.forward(rank + 1).backward(); }),
                HasSubstr(rank == 0 ? "call zero_grad() between" : "some rank ended early"));
    chain.zero_grad();
    chain.forward(rank + 1).backward();
    EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5));
  });
}

// ---- passes inside passes ----------------------------------------------------------------------------------------------------

// As activation checkpointing does: the backward pass of a part runs inside the whole one's.
struct Nested : torch::autograd::Function<Nested> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& parameter) {
    context->save_for_backward({x.detach()});
    context->saved_data["parameter"] = parameter;
    return x + parameter.detach();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const torch::AutoGradMode with_grad(true);
    const Tensor parameter = context->saved_data["parameter"].toTensor();
    (x + parameter).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

// Parameters: `order` says which are used inside nested passes.
Tensor nested_loss(const Chain& chain, double factor, const std::vector<bool>& nested) {
  Tensor x = torch::zeros({4}).requires_grad_(true);
  for (std::size_t i = 0; i < 3; ++i) {
    x = nested[i] ? Nested::apply(x, chain.all[i]) : x + chain.all[i];
  }
  return (x * factor).sum();
}

TEST(Nested, PassesComeToTheSameGradients) {
  const std::vector<std::vector<bool>> choices{{false, true, false}, {true, false, false}, {false, false, true},
                                               {true, true, true},   {true, false, true},  {false, false, false}};
  with_two([&](const GroupPtr& group, int rank) {
    for (const auto& choice : choices) {
      Chain chain;
      const DistributedDataParallel ddp(chain, group, small_buckets());
      for (int round = 0; round < 3; ++round) {
        chain.zero_grad(round != 1);
        nested_loss(chain, rank + 1, choice).backward();
        EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5))
            << choice[0] << choice[1] << choice[2] << ", round " << round;
      }
    }
  });
}

// ---- gradients in their places -----------------------------------------------------------------------------------------------

TEST(Places, AreStridedAsTheParameterAndKeptFromStepToStep) {
  struct Strided : torch::nn::Module {
    Strided() {
      last = register_parameter("last", torch::randn({2, 3, 4, 4}).to(torch::MemoryFormat::ChannelsLast));
      turned = register_parameter("turned", torch::randn({3, 5}).t());
      sliced = register_parameter("sliced", torch::randn({6, 8}).slice(1, 0, 8, 2));
      scalar = register_parameter("scalar", torch::randn({}));
      complex = register_parameter("complex", torch::randn({3}, torch::kComplexFloat));
    }
    Tensor last, turned, sliced, scalar, complex;
  };
  with_two([](const GroupPtr& group, int rank) {
    Strided net;
    const DistributedDataParallel ddp(net, group);
    std::vector<const void*> before;
    for (int round = 0; round < 3; ++round) {
      net.zero_grad();
      const Tensor sum = net.last.pow(2).sum() + net.turned.pow(2).sum() + net.sliced.pow(2).sum() + net.scalar.pow(2) +
                         torch::real(net.complex * net.complex.conj()).sum();
      (sum * (rank + 1)).backward();
      std::vector<const void*> places;
      for (const Tensor& parameter : net.parameters()) {
        EXPECT_TRUE(torch::allclose(parameter.grad(), 3 * parameter.detach()));
        places.push_back(parameter.grad().const_data_ptr());
      }
      EXPECT_TRUE(round < 2 || places == before);
      before = places;
    }
    EXPECT_EQ(net.last.grad().strides(), net.last.strides());
    EXPECT_EQ(net.turned.grad().strides(), net.turned.strides());
    EXPECT_TRUE(net.sliced.grad().is_contiguous());
    EXPECT_FALSE(net.last.grad().is_view());
  });
}

TEST(Places, AGradientNobodyUsedKeepsItsBits) {
  with_groups(Kind::kSharedMemory, 3, [](const GroupPtr& group) {
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets());
    const Tensor& c = chain.all[2];
    chain.forward(0.1 * (group->getRank() + 1)).backward();
    const Tensor before = c.grad().clone();
    for (int round = 0; round < 5; ++round) {
      chain.all[0].mutable_grad().reset();
      chain.all[1].mutable_grad().reset();
      chain.forward(group->getRank(), 2).backward();
      EXPECT_TRUE(torch::equal(c.grad(), before));
      EXPECT_THAT(gradients_of(chain), ElementsAre(1, 1, before[0].item<float>()));
    }
  });
}

// Left by no_sync() and not used in the pass that reduces.
TEST(Places, WhatAccumulatedUnderNoSyncCountsAlsoWhereThePassDoesNotUseIt) {
  with_two([](const GroupPtr& group, int rank) {
    Chain chain;
    DistributedDataParallel ddp(chain, group, small_buckets());
    for (int round = 0; round < 3; ++round) {
      chain.zero_grad(round != 1);
      {
        const auto no_sync = ddp.no_sync();
        chain.forward(10 * rank, rank == 0 ? 2 : 3).backward();
      }
      chain.forward(rank + 1, 2).backward();
      EXPECT_THAT(gradients_of(chain), ElementsAre(6.5, 6.5, 5));
    }
  });
}

// ---- mistakes ------------------------------------------------------------------------------------------------------------------

TEST(Mistakes, AFrozenParameterThatTrainsAfterAllIsNamed) {
  with_two([](const GroupPtr& group, int rank) {
    Chain chain;
    chain.all[1].requires_grad_(false);
    const DistributedDataParallel ddp(chain, group, small_buckets());
    chain.forward(rank + 1).backward();
    EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, -1, 1.5));
    chain.zero_grad();
    chain.all[1].requires_grad_(true);
    EXPECT_THAT(error_of([&] { chain.forward(1).backward(); }), HasSubstr("'b' was frozen"));
  });
}

TEST(Mistakes, ModulesThatDifferInWhatIsFrozenSharedOrBufferedAreNamedOnEveryRank) {
  const auto errors = [](const std::function<void(Chain & chain)>& change) {
    std::mutex mutex;
    std::vector<std::string> heard;
    with_groups(Kind::kSharedMemory, 3, [&](const GroupPtr& group) {
      Chain chain;
      if (group->getRank() == 2) {
        change(chain);
      }
      const std::string error = error_of([&] { DistributedDataParallel(chain, group); });
      const std::scoped_lock lock(mutex);
      heard.push_back(error);
    });
    EXPECT_TRUE(heard[0] == heard[1] && heard[1] == heard[2]);
    return heard[0];
  };
  EXPECT_THAT(errors([](Chain& chain) { chain.all[1].requires_grad_(false); }),
              AllOf(HasSubstr("parameter 'b' Float [4], trained on rank 0"), HasSubstr("'b' Float [4] on rank 2")));
  EXPECT_THAT(errors([](Chain& chain) { chain.register_parameter("d", chain.all[0]); }),
              HasSubstr("parameter 'd' Float [4], trained, shared with 'a' on rank 2"));
  EXPECT_THAT(errors([](Chain& chain) { chain.register_buffer("e", torch::zeros({2}, torch::kLong)); }),
              HasSubstr("buffer 'e' Long [2] on rank 2"));
  EXPECT_THAT(errors([](Chain& chain) { chain.to(torch::kDouble); }), HasSubstr("parameter 'a' Double [4]"));
}

TEST(Mistakes, ARankWhosePassReachesNoParameterIsWaitedForAndNamed) {
  std::promise<void> timed_out;
  const auto rank0_done = timed_out.get_future().share();
  with_ranks(2, [&](int rank, const StorePtr& store) {
    const auto options = options_of(Kind::kSharedMemory, rank, std::chrono::milliseconds(1500));
    const GroupPtr group = group_of(c10::make_intrusive<ProcessGroupDownpour>(store, rank, 2, options), store);
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets());
    if (rank == 0) {
      EXPECT_THAT(error_of([&] { chain.forward(1).backward(); }), HasSubstr("rank 1"));
      timed_out.set_value();
    } else {
      torch::ones({1}).requires_grad_(true).sum().backward();
      rank0_done.wait();
    }
  });
}

// ---- construction and compression -----------------------------------------------------------------------------------------------

TEST(Construction, TakesValuesOfEveryDtypeAndStride) {
  with_two([](const GroupPtr& group, int rank) {
    Chain chain;
    const auto types = {torch::kBool,     torch::kLong,          torch::kHalf,
                        torch::kBFloat16, torch::kComplexDouble, torch::kByte};
    for (const auto type : types) {
      chain.register_buffer(c10::toString(type), torch::full({2, 3}, 1 - rank, type).t());
    }
    chain.register_buffer("empty", torch::zeros({0}));
    chain.register_buffer("scalar", torch::full({}, rank));
    chain.register_buffer("sliced", torch::full({4, 4}, rank).slice(1, 0, 4, 2));
    const DistributedDataParallel ddp(chain, group);
    for (const auto& buffer : chain.named_buffers()) {
      const double expected = buffer.key() == "scalar" || buffer.key() == "sliced" ? 0 : 1;
      EXPECT_TRUE(buffer.value().eq(expected).all().item<bool>()) << buffer.key();
    }
  });
}

TEST(Compressed, AnOverflowIsHeardOfOnce) {
  with_two([](const GroupPtr& group, int rank) {
    Chain chain;
    const DistributedDataParallel ddp(chain, group, small_buckets().compression(Compression::kFloat16));
    for (const double factor : {1.0, 1e6, 1.0, 1.0}) {
      chain.zero_grad();
      chain.forward(factor * (rank + 1)).backward();
      EXPECT_EQ(std::isfinite(gradients_of(chain)[0]), factor == 1.0);
    }
    EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1.5));
  });
}

TEST(AnyGroup, AlsoGloo) {
#ifdef DOWNPOUR_TEST_GLOO
  with_groups(Kind::kGloo, 2, [](const GroupPtr& group) {
    Chain chain;
    DistributedDataParallel ddp(chain, group, small_buckets().buffers(DdpBuffers::kMean));
    for (int round = 0; round < 3; ++round) {
      chain.zero_grad(round == 1);
      chain.forward(group->getRank() + 1, group->getRank() == 0 ? 2 : 3).backward();
      EXPECT_THAT(gradients_of(chain), ElementsAre(1.5, 1.5, 1));
    }
  });
#else
  GTEST_SKIP() << "no headers of Gloo";
#endif
}

}  // namespace
}  // namespace downpour::backends
