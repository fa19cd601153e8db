#include "csrc/model/trainable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace downpour::model {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

struct TiedLayer : torch::nn::Module {
  explicit TiedLayer(Tensor weight) {
    register_parameter("weight", std::move(weight));
    register_parameter("bias", torch::zeros({2}));
  }
};

struct SharedNet : torch::nn::Module {
  SharedNet() {
    first = register_module("first", torch::nn::Linear(3, 2));
    second = register_module("second", torch::nn::Linear(2, 2));
    register_module("again", std::make_shared<TiedLayer>(second->weight));
    second->bias.requires_grad_(false);
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    empty = register_parameter("empty", torch::zeros({0, 4}));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor empty;
};

std::vector<std::string> names(const Trainable& trainable) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    result.push_back(trainable[i].name);
  }
  return result;
}

template <typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.msg();
  }
  return "no error";
}

Tensor parameter(Tensor tensor) { return tensor.requires_grad_(true); }

TEST(Trainable, IndexesAModuleInOrderSharedOnceFrozenNot) {
  const auto net = std::make_shared<SharedNet>();
  const Trainable trainable = Trainable::of(*net);
  EXPECT_THAT(names(trainable), ::testing::UnorderedElementsAre("empty", "first.weight", "first.bias", "second.weight",
                                                                "again.bias", "norm.weight", "norm.bias"));
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    EXPECT_EQ(trainable[i].offset, offset);
    EXPECT_EQ(trainable.find(trainable[i].tensor), i);
    offset += trainable[i].tensor.numel();
  }
  EXPECT_EQ(trainable.numel(), offset);
  EXPECT_EQ(trainable.find(net->second->bias), std::nullopt);
}

TEST(Trainable, HoldsTheUsersOwnTensors) {
  const auto net = std::make_shared<SharedNet>();
  const Trainable trainable = Trainable::of(*net);
  const auto index = trainable.find(net->first->weight);
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(trainable[*index].tensor.unsafeGetTensorImpl(), net->first->weight.unsafeGetTensorImpl());
  EXPECT_EQ(trainable.shape(*index), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(trainable.dtype(*index), Dtype::kFloat32);
}

TEST(Trainable, ListsFloatingPointBuffersApart) {
  const auto net = std::make_shared<SharedNet>();
  const auto buffers = Trainable::of_buffers(Trainable::float_buffers(*net));
  EXPECT_THAT(names(buffers), ::testing::ElementsAre("norm.running_mean", "norm.running_var"));
  EXPECT_EQ(Trainable::of_buffers({}).size(), 0);
}

TEST(Trainable, RefusesWhatCannotBeTrainedByName) {
  const auto refuse = [](Tensor tensor) { return message_of([&] { Trainable({{"weight", tensor}}); }); };
  EXPECT_THAT(refuse(Tensor()), HasSubstr("'weight': expected a tensor"));
  EXPECT_THAT(refuse(parameter(torch::zeros({2}, torch::kHalf))),
              HasSubstr("'weight': expected dtype float32 or float64, found Half"));
  EXPECT_THAT(refuse(torch::zeros({2}, torch::kInt)), HasSubstr("'weight': expected dtype"));
  EXPECT_THAT(refuse(parameter(torch::zeros({2, 2}).to_sparse())), HasSubstr("'weight': expected a dense tensor"));
  EXPECT_THAT(refuse(torch::zeros({2})), HasSubstr("'weight': does not require grad"));
  EXPECT_THAT(refuse(parameter(torch::zeros({2})) * 2), HasSubstr("not a leaf"));
  EXPECT_THAT(refuse(parameter(torch::zeros({2}, torch::kMeta))), HasSubstr("meta device"));
  EXPECT_THAT(refuse(parameter(torch::zeros({1}).expand({3}))), HasSubstr("share memory"));
  EXPECT_THAT(message_of([] { Trainable::of(std::vector<Tensor>{}); }), HasSubstr("no parameters"));
  EXPECT_THAT(message_of([] { Trainable::of({torch::zeros({1})}); }), HasSubstr("'group 0, parameter 0'"));
}

// Any part of any layout: every range of the flattened order lands where a contiguous tensor would have it.
TEST(Trainable, CopiesEveryRangeIntoEveryLayout) {
  const Tensor base = torch::zeros({4, 3, 5});
  const std::vector<Tensor> layouts = {base.clone(),
                                       base.clone().transpose(0, 2),
                                       torch::zeros({4, 6, 5}).slice(1, 0, 6, 2),
                                       torch::zeros({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast),
                                       torch::zeros({7}),
                                       torch::zeros({}),
                                       torch::zeros({0, 2}),
                                       torch::zeros({5, 4}, torch::kDouble).t()};
  for (const Tensor& layout : layouts) {
    Tensor tensor = parameter(layout.detach());
    Trainable trainable({{"p", tensor}});
    const auto strides = tensor.strides().vec();
    for (std::int64_t begin = 0; begin <= tensor.numel(); begin += 3) {
      for (std::int64_t count = 0; begin + count <= tensor.numel(); count += 2) {
        const Tensor values = torch::arange(1, tensor.numel() + 1, tensor.options().requires_grad(false));
        const Tensor expected = torch::zeros({tensor.numel()}, values.options());
        expected.narrow(0, begin, count).copy_(values.narrow(0, begin, count));
        {
          const torch::NoGradGuard no_grad;
          tensor.zero_();
        }
        const char* source = static_cast<const char*>(values.const_data_ptr()) + begin * values.element_size();
        trainable.copy_in(0, begin, count, source);
        ASSERT_TRUE(torch::equal(tensor.detach().reshape(-1), expected))
            << tensor.sizes() << tensor.strides() << begin << " " << count;
        ASSERT_TRUE(torch::equal(trainable.values(0).view(-1), expected));
        ASSERT_EQ(tensor.strides(), strides);
      }
    }
  }
}

TEST(Trainable, CopyInIsAnInPlaceUpdateToAutograd) {
  Tensor weight = parameter(torch::ones({2}));
  Trainable trainable({{"weight", weight}});
  const Tensor loss = (weight * weight).sum();
  const float values[] = {5, 6};
  trainable.copy_in(0, 0, 2, values);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(Trainable, TellsWhatChangedSinceTheLastLook) {
  const auto net = std::make_shared<torch::nn::LinearImpl>(3, 2);
  Trainable trainable = Trainable::of(*net);
  EXPECT_TRUE(trainable.look().empty());

  net->weight.set_data(torch::ones({2, 3}));
  auto changes = trainable.look();
  ASSERT_EQ(changes.size(), 1);
  EXPECT_EQ(changes[0].name, "weight");
  EXPECT_EQ(changes[0].what, "storage");
  EXPECT_TRUE(changes[0].storage_only);
  EXPECT_TRUE(trainable.look().empty()) << "told once";

  net->to(torch::kDouble);
  changes = trainable.look();
  ASSERT_EQ(changes.size(), 2);
  EXPECT_EQ(changes[0].what, "dtype");
  EXPECT_EQ(changes[0].expected, "Float");
  EXPECT_EQ(changes[0].found, "Double");
  EXPECT_FALSE(changes[0].storage_only);

  net->to(torch::kFloat);
  net->weight.set_data(torch::ones({3, 2}));
  changes = trainable.look();
  ASSERT_GE(changes.size(), 1);
  EXPECT_EQ(changes[0].what, "shape");
  EXPECT_EQ(changes[0].found, "[3, 2]");
}

TEST(Trainable, GivesGradientsContiguousAndChecked) {
  Tensor weight = parameter(torch::ones({3, 2}).t());
  Trainable trainable({{"weight", weight}});
  EXPECT_FALSE(trainable.gradient(0).defined());
  (weight * torch::arange(6.0f).view({2, 3})).sum().backward();
  const Tensor gradient = trainable.gradient(0);
  EXPECT_TRUE(gradient.is_contiguous());
  EXPECT_TRUE(torch::equal(gradient.view(-1), torch::arange(6.0f)));

  weight.mutable_grad() = torch::ones({2, 3}).to_sparse();
  EXPECT_THAT(message_of([&] { trainable.gradient(0); }), HasSubstr("'weight': its gradient is sparse"));
}

TEST(Trainable, StagesThroughPinnedMemoryOnADevice) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  Tensor weight = parameter(torch::zeros({4, 3}, torch::kCUDA).t());
  Trainable trainable({{"weight", weight}});
  const Tensor values = torch::arange(12.0f);
  trainable.copy_in(0, 0, 5, values.data_ptr<float>());
  trainable.copy_in(0, 5, 7, values.data_ptr<float>() + 5);
  EXPECT_TRUE(torch::equal(weight.detach().cpu().reshape(-1), values));
  EXPECT_TRUE(trainable.values(0).is_pinned());
  (weight * weight).sum().backward();
  EXPECT_TRUE(torch::equal(trainable.gradient(0).view(-1), values * 2));
}

}  // namespace
}  // namespace downpour::model
