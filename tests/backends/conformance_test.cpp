// One suite for every backend: all operations over worlds, dtypes, sizes and layouts, against values that are computed from all ranks'
// inputs by at:: operations.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <sstream>
#include <tuple>

#include "tests/backends/rank_threads.h"

// The names that 2.11 has; 2.13 and later have others beside them, which come to the same functions of a backend.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace downpour::backends {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

enum class Layout { kContiguous, kStrided, kOffset };

struct Case {
  GroupPtr group;
  at::ScalarType dtype;
  std::int64_t count;
  Layout layout;

  int rank() const { return group->getRank(); }
  int world() const { return group->getSize(); }

  // Small powers of two, whose products and sums are exact in every dtype.
  at::Tensor values(int rank, std::int64_t seed = 0) const {
    const at::Tensor numbers = (at::arange(count) + rank + seed * 3).remainder(2);
    return dtype == at::kBool ? numbers.to(at::kBool) : (numbers + 1).to(dtype);
  }
  at::Tensor laid_out(const at::Tensor& tensor) const {
    const auto options = tensor.options();
    at::Tensor result = layout == Layout::kContiguous ? at::zeros({tensor.numel()}, options)
                        : layout == Layout::kStrided
                            ? at::zeros({tensor.numel() * 2}, options).slice(0, 0, tensor.numel() * 2, 2)
                            : at::zeros({tensor.numel() + 3}, options).narrow(0, 3, tensor.numel());
    result.copy_(tensor);
    return result;
  }
  at::Tensor mine(std::int64_t seed = 0) const { return laid_out(values(rank(), seed)); }
  at::Tensor empty() const { return laid_out(at::zeros({count}, dtype)); }
  std::vector<at::Tensor> empties() const {
    std::vector<at::Tensor> result;
    for (int i = 0; i < world(); ++i) {
      result.push_back(empty());
    }
    return result;
  }

  // Each part divided: at:: multiplies a complex number by a reciprocal.
  at::Tensor averaged(const at::Tensor& sum) const {
    return sum.is_complex() ? at::view_as_complex(at::view_as_real(sum) / world()) : sum / world();
  }
  at::Tensor reduced(RedOp op, std::int64_t seed = 0) const {
    std::vector<at::Tensor> all;
    for (int other = 0; other < world(); ++other) {
      all.push_back(values(other, seed));
    }
    const at::Tensor stacked = at::stack(all);
    const auto wide = stacked.is_complex() ? at::kComplexDouble : stacked.is_floating_point() ? at::kDouble : at::kLong;
    const at::Tensor w = stacked.to(wide);
    switch (op) {
      case RedOp::SUM: return w.sum(0).to(dtype);
      case RedOp::AVG: return averaged(w.sum(0)).to(dtype);
      case RedOp::PRODUCT: return w.prod(0).to(dtype);
      case RedOp::MIN: return w.amin(0).to(dtype);
      case RedOp::MAX: return w.amax(0).to(dtype);
      default: break;
    }
    at::Tensor bits = stacked[0].clone();
    for (int other = 1; other < world(); ++other) {
      op == RedOp::BAND  ? bits.bitwise_and_(stacked[other])
      : op == RedOp::BOR ? bits.bitwise_or_(stacked[other])
                         : bits.bitwise_xor_(stacked[other]);
    }
    return bits;
  }
  bool takes(RedOp op) const {
    const bool number = dtype != at::kBool;
    switch (op) {
      case RedOp::AVG: return at::isFloatingType(dtype) || at::isComplexType(dtype);
      case RedOp::MIN:
      case RedOp::MAX: return !at::isComplexType(dtype);
      case RedOp::BAND:
      case RedOp::BOR:
      case RedOp::BXOR: return at::isIntegralType(dtype, true);
      default: return number || op == RedOp::SUM || op == RedOp::PRODUCT;
    }
  }
};

bool same(const at::Tensor& found, const at::Tensor& expected) { return at::equal(found, expected); }

std::vector<RedOp> all_reductions() {
  return {RedOp::SUM, RedOp::AVG, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX, RedOp::BAND, RedOp::BOR, RedOp::BXOR};
}

using Check = std::function<bool(const Case&)>;

// Every rank of a collective call ends with a right result, or says so.
const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> all = {
      {"allreduce",
       [](const Case& c) {
         bool right = true;
         for (const RedOp op : all_reductions()) {
           if (c.takes(op)) {
             std::vector<at::Tensor> tensors{c.mine()};
             c10d::AllreduceOptions options;
             options.reduceOp = op;
             c.group->allreduce(tensors, options)->wait();
             right = right && same(tensors[0], c.reduced(op));
           }
         }
         return right;
       }},
      {"allreduce_coalesced",
       [](const Case& c) {
         std::vector<at::Tensor> tensors{c.mine(0), c.mine(1)};
         c.group->allreduce_coalesced(tensors)->wait();
         return same(tensors[0], c.reduced(RedOp::SUM, 0)) && same(tensors[1], c.reduced(RedOp::SUM, 1));
       }},
      {"broadcast",
       [](const Case& c) {
         bool right = true;
         for (const int root : {0, c.world() - 1}) {
           std::vector<at::Tensor> tensors{c.mine()};
           c10d::BroadcastOptions options;
           options.rootRank = root;
           c.group->broadcast(tensors, options)->wait();
           right = right && same(tensors[0], c.values(root));
         }
         return right;
       }},
      {"reduce",
       [](const Case& c) {
         const int root = c.world() / 2;
         std::vector<at::Tensor> tensors{c.mine()};
         c10d::ReduceOptions options;
         options.rootRank = root;
         c.group->reduce(tensors, options)->wait();
         return c.rank() != root || same(tensors[0], c.reduced(RedOp::SUM));
       }},
      {"allgather",
       [](const Case& c) {
         std::vector<std::vector<at::Tensor>> outputs{c.empties()};
         std::vector<at::Tensor> inputs{c.mine()};
         c.group->allgather(outputs, inputs)->wait();
         bool right = true;
         for (int other = 0; other < c.world(); ++other) {
           right = right && same(outputs[0][static_cast<std::size_t>(other)], c.values(other));
         }
         return right;
       }},
      {"allgather_base",
       [](const Case& c) {
         at::Tensor input = c.mine();
         at::Tensor output = c.laid_out(at::zeros({c.count * c.world()}, c.dtype));
         c.group->_allgather_base(output, input)->wait();
         bool right = true;
         for (int other = 0; other < c.world(); ++other) {
           right = right && same(output.narrow(0, other * c.count, c.count), c.values(other));
         }
         return right;
       }},
      {"gather",
       [](const Case& c) {
         const int root = c.world() - 1;
         std::vector<at::Tensor> inputs{c.mine()};
         std::vector<std::vector<at::Tensor>> outputs;
         if (c.rank() == root) {
           outputs.push_back(c.empties());
         }
         c10d::GatherOptions options;
         options.rootRank = root;
         c.group->gather(outputs, inputs, options)->wait();
         bool right = true;
         for (int other = 0; c.rank() == root && other < c.world(); ++other) {
           right = right && same(outputs[0][static_cast<std::size_t>(other)], c.values(other));
         }
         return right;
       }},
      {"scatter",
       [](const Case& c) {
         std::vector<at::Tensor> outputs{c.empty()};
         std::vector<std::vector<at::Tensor>> inputs;
         if (c.rank() == 0) {
           inputs.emplace_back();
           for (int other = 0; other < c.world(); ++other) {
             inputs[0].push_back(c.laid_out(c.values(other)));
           }
         }
         c.group->scatter(outputs, inputs)->wait();
         return same(outputs[0], c.values(c.rank()));
       }},
      {"reduce_scatter",
       [](const Case& c) {
         std::vector<at::Tensor> outputs{c.empty()};
         std::vector<std::vector<at::Tensor>> inputs(1);
         for (int slice = 0; slice < c.world(); ++slice) {
           inputs[0].push_back(c.mine(slice));
         }
         c.group->reduce_scatter(outputs, inputs)->wait();
         return same(outputs[0], c.reduced(RedOp::SUM, c.rank()));
       }},
      {"reduce_scatter_base",
       [](const Case& c) {
         std::vector<at::Tensor> slices;
         for (int slice = 0; slice < c.world(); ++slice) {
           slices.push_back(c.values(c.rank(), slice));
         }
         at::Tensor input = c.laid_out(at::cat(slices));
         at::Tensor output = c.empty();
         c.group->_reduce_scatter_base(output, input)->wait();
         return same(output, c.reduced(RedOp::SUM, c.rank()));
       }},
      {"alltoall_base",
       [](const Case& c) {
         std::vector<at::Tensor> slices;
         for (int slice = 0; slice < c.world(); ++slice) {
           slices.push_back(c.values(c.rank(), slice));
         }
         at::Tensor input = c.laid_out(at::cat(slices));
         at::Tensor output = c.laid_out(at::zeros({c.count * c.world()}, c.dtype));
         std::vector<std::int64_t> even;
         c.group->alltoall_base(output, input, even, even)->wait();
         bool right = true;
         for (int other = 0; other < c.world(); ++other) {
           right = right && same(output.narrow(0, other * c.count, c.count), c.values(other, c.rank()));
         }
         return right;
       }},
      {"alltoall_base_uneven",
       [](const Case& c) {  // rank r sends r + s + 1 elements to rank s
         std::vector<std::int64_t> splits;
         std::vector<at::Tensor> sent, expected;
         for (int other = 0; other < c.world(); ++other) {
           splits.push_back(c.count == 0 ? 0 : c.rank() + other + 1);
           sent.push_back(at::full({splits.back()}, c.rank() % 2, c.dtype));
           expected.push_back(at::full({splits.back()}, other % 2, c.dtype));
         }
         at::Tensor input = c.laid_out(at::cat(sent));
         at::Tensor output = c.laid_out(at::zeros_like(input));
         c.group->alltoall_base(output, input, splits, splits)->wait();
         return same(output, at::cat(expected));
       }},
      {"send_recv",
       [](const Case& c) {
         if (c.world() == 1) {
           return true;
         }
         std::vector<at::Tensor> mine{c.mine()}, theirs{c.empty()};
         const int next = (c.rank() + 1) % c.world(), before = (c.rank() + c.world() - 1) % c.world();
         const auto sending = c.group->send(mine, next, 3);
         c.group->recv(theirs, before, 3)->wait();
         sending->wait();
         return same(theirs[0], c.values(before));
       }},
  };
  return all;
}

std::string text(const std::string& operation, const Case& c) {
  std::ostringstream out;
  out << operation << " of " << c.count << " " << c.dtype << ", layout " << static_cast<int>(c.layout) << ", rank "
      << c.rank() << " of " << c.world();
  return out.str();
}

bool is_beyond_gloo(const std::string& operation, const Case& c) {
  return c.count == 0 || c.layout != Layout::kContiguous || operation == "reduce_scatter" || c.dtype == at::kBFloat16 ||
         c.dtype == at::kBool || at::isComplexType(c.dtype) || operation.starts_with("alltoall");
}

class Conformance : public testing::TestWithParam<std::tuple<Kind, int, std::string>> {};

TEST_P(Conformance, EveryDtypeSizeAndLayoutIsRight) {
  const auto [kind, world, operation] = GetParam();
  const Check& check = checks().at(operation);
  std::mutex mutex;
  std::vector<std::string> wrong;
  with_groups(kind, world, [&, kind = kind, operation = operation](const GroupPtr& group) {
    for (const at::ScalarType dtype : {at::kBool, at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                                       at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      for (const std::int64_t count : {0, 1, 1009, 70'001}) {
        for (const Layout layout : {Layout::kContiguous, Layout::kStrided, Layout::kOffset}) {
          const Case tested{group, dtype, count, layout};
          const bool is_large = count > 10'000;
          if (is_large && dtype != at::kFloat && dtype != at::kBFloat16) {
            continue;  // the reductions' own tests have all pairs over all lengths
          }
          if (kind == Kind::kGloo && is_beyond_gloo(operation, tested)) {
            continue;
          }
          if (!check(tested)) {
            const std::scoped_lock lock(mutex);
            wrong.push_back(text(operation, tested));
          }
        }
      }
    }
  });
  EXPECT_EQ(wrong, std::vector<std::string>());
}

std::vector<std::string> operations() {
  std::vector<std::string> result;
  for (const auto& [operation, check] : checks()) {
    result.push_back(operation);
  }
  return result;
}

std::vector<Kind> kinds() {
  std::vector<Kind> result{Kind::kSharedMemory, Kind::kTcp, Kind::kTwoLevels};
#ifdef DOWNPOUR_TEST_GLOO
  result.push_back(Kind::kGloo);  // a peer: that the suite's expectations are c10d's own
#endif
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, Conformance,
                         testing::Combine(testing::ValuesIn(kinds()), testing::Values(1, 2, 3, 4, 7),
                                          testing::ValuesIn(operations())),
                         [](const auto& tested) {
                           return name(std::get<0>(tested.param)) + "_" + std::to_string(std::get<1>(tested.param)) +
                                  "_" + std::get<2>(tested.param);
                         });

}  // namespace
}  // namespace downpour::backends
