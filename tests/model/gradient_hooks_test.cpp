#include "csrc/model/gradient_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/model/trainable.h"
#include "tests/optimizers/models.h"

namespace downpour::model {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using torch::Tensor;

Tensor leaf() { return torch::ones({2}).requires_grad_(true); }

TEST(GradientHooks, LaterLayersComeFirstAndEachOnceABackward) {
  const auto net = downpour::testing::make_mlp();
  const auto trainable = Trainable::of(*net);
  std::vector<std::string> order;
  GradientHooks hooks(trainable.tensors(), [&](std::size_t i) { order.push_back(trainable[i].name.substr(0, 5)); });
  downpour::testing::loss_of(*net, downpour::testing::make_batch(0)).backward();
  EXPECT_THAT(order, ElementsAre("secon", "secon", "first", "first"));
  downpour::testing::loss_of(*net, downpour::testing::make_batch(1)).backward();
  EXPECT_EQ(order.size(), 8);
}

TEST(GradientHooks, SharedOnceWithItsWholeGradientUnusedNever) {
  const Tensor shared = leaf(), unused = leaf();
  const auto trainable = Trainable::of({shared, unused});
  std::vector<std::size_t> fired;
  Tensor seen;
  GradientHooks hooks(trainable.tensors(), [&](std::size_t i) {
    fired.push_back(i);
    seen = trainable[i].tensor.grad().clone();
  });
  (shared.sum() + shared.sin().sum() + 3 * shared.sum()).backward();
  EXPECT_THAT(fired, ElementsAre(0));
  EXPECT_TRUE(torch::equal(seen, shared.grad()));
}

TEST(GradientHooks, PauseIsNestable) {
  const Tensor parameter = leaf();
  const auto trainable = Trainable::of(std::vector<Tensor>{parameter});
  int fired = 0;
  GradientHooks hooks(trainable.tensors(), [&](std::size_t) { ++fired; });
  hooks.pause();
  hooks.pause();
  hooks.resume();
  parameter.sum().backward();
  EXPECT_EQ(fired, 0);
  hooks.resume();
  parameter.sum().backward();
  EXPECT_EQ(fired, 1);
}

TEST(GradientHooks, TwoSetsLiveOnOneModule) {
  const Tensor parameter = leaf();
  const auto trainable = Trainable::of(std::vector<Tensor>{parameter});
  std::vector<char> fired;
  auto first = std::make_unique<GradientHooks>(trainable.tensors(), [&](std::size_t) { fired.push_back('1'); });
  const auto second = std::make_unique<GradientHooks>(trainable.tensors(), [&](std::size_t) { fired.push_back('2'); });
  parameter.sum().backward();
  EXPECT_THAT(fired, UnorderedElementsAre('1', '2'));
  first.reset();  // not the outer one: it goes silent where it is
  parameter.sum().backward();
  EXPECT_THAT(fired, UnorderedElementsAre('1', '2', '2'));
}

}  // namespace
}  // namespace downpour::model
