#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/collective/call.h"

// Memory of calls, and what must be in it afterwards, computed here without any code under test.
namespace downpour::collective {

// Values small enough that every type holds them and every order of a sum gives the same: of element i on a rank.
inline std::int64_t sample(int rank, std::int64_t i) { return (rank * 3 + i * 7 + i / 5) % 5 + 1; }

template <typename T>
std::vector<T> samples(int rank, std::int64_t count, std::int64_t first = 0) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<T>(sample(rank, first + i));
  }
  return values;
}

template <typename T>
T expected_reduction(ReduceOp op, int world, std::int64_t i) {
  std::int64_t result = sample(0, i);
  for (int rank = 1; rank < world; ++rank) {
    const std::int64_t next = sample(rank, i);
    switch (op) {
      case ReduceOp::kSum: result += next; break;
      case ReduceOp::kAverage: result += next; break;
      case ReduceOp::kProduct: result *= next; break;
      case ReduceOp::kMinimum: result = std::min(result, next); break;
      case ReduceOp::kMaximum: result = std::max(result, next); break;
      case ReduceOp::kBitAnd: result &= next; break;
      case ReduceOp::kBitOr: result |= next; break;
      case ReduceOp::kBitXor: result ^= next; break;
    }
  }
  return op == ReduceOp::kAverage ? static_cast<T>(result) / static_cast<T>(world) : static_cast<T>(result);
}

template <typename T>
MutableBytes bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

template <typename T>
constexpr ElementType element_type();
template <>
constexpr ElementType element_type<float>() {
  return ElementType::kFloat32;
}
template <>
constexpr ElementType element_type<double>() {
  return ElementType::kFloat64;
}
template <>
constexpr ElementType element_type<std::int32_t>() {
  return ElementType::kInt32;
}
template <>
constexpr ElementType element_type<std::int64_t>() {
  return ElementType::kInt64;
}
template <>
constexpr ElementType element_type<std::uint8_t>() {
  return ElementType::kUint8;
}

// One rank's part in one call: its memory, the call, and what the memory must be afterwards. `count`: as CallShape::count.
template <typename T>
class RankCall {
 public:
  RankCall(Op op, ReduceOp reduce, int root, std::int64_t count, int rank, int world)
      : rank_(rank), world_(world), count_(count) {
    call_.shape = {op, element_type<T>(), reduce, root, count};
    switch (op) {
      case Op::kBarrier: call_.shape = {}; break;
      case Op::kBroadcast:
        add_output(rank == root ? samples<T>(root, count) : std::vector<T>(size(count), T{9}), samples<T>(root, count));
        break;
      case Op::kAllReduce: add_output(samples<T>(rank, count), reduction(reduce, 0)); break;
      case Op::kReduce:
        add_output(samples<T>(rank, count), rank == root ? reduction(reduce, 0) : samples<T>(rank, count));
        break;
      case Op::kAllGather:
      case Op::kGather:
        inputs_.push_back(samples<T>(rank, count));
        for (int other = 0; other < world && (op == Op::kAllGather || rank == root); ++other) {
          add_output(std::vector<T>(size(count), T{9}), samples<T>(other, count));
        }
        break;
      case Op::kScatter:
        for (int other = 0; other < world && rank == root; ++other) {
          inputs_.push_back(samples<T>(other, count));
        }
        add_output(std::vector<T>(size(count), T{9}), samples<T>(rank, count));
        break;
      case Op::kReduceScatter:
        for (int other = 0; other < world; ++other) {
          inputs_.push_back(samples<T>(rank, count, other * count));
        }
        add_output(std::vector<T>(size(count), T{9}), reduction(reduce, rank * count));
        break;
      case Op::kAllToAll:
        for (int other = 0; other < world; ++other) {
          add_all_to_all(other, count);
        }
        break;
    }
    connect();
  }

  const Call& call() const { return call_; }
  bool is_right() const { return outputs_ == expected_ && inputs_ == original_; }
  bool is_untouched() const { return outputs_ == before_ && inputs_ == original_; }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  void add_output(std::vector<T> before, std::vector<T> after) {
    outputs_.push_back(std::move(before));
    expected_.push_back(std::move(after));
  }
  // Uneven: rank a sends a + 2 b + 1 elements to rank b.
  void add_all_to_all(int other, std::int64_t count) {
    const bool uneven = count == CallShape::kUneven;
    const std::int64_t to = uneven ? rank_ + 2 * other + 1 : count;
    const std::int64_t from = uneven ? other + 2 * rank_ + 1 : count;
    inputs_.push_back(samples<T>(rank_, to, 100 * other));
    add_output(std::vector<T>(size(from), T{9}), samples<T>(other, from, 100 * rank_));
  }
  std::vector<T> reduction(ReduceOp op, std::int64_t first) const {
    std::vector<T> values;
    for (std::int64_t i = 0; i < count_; ++i) {
      values.push_back(expected_reduction<T>(op, world_, first + i));
    }
    return values;
  }
  void connect() {
    original_ = inputs_;
    before_ = outputs_;
    for (auto& values : inputs_) {
      call_.inputs.push_back(bytes_of(values));
    }
    for (auto& values : outputs_) {
      call_.outputs.push_back(bytes_of(values));
    }
  }

  int rank_, world_;
  std::int64_t count_;
  Call call_;
  std::vector<std::vector<T>> inputs_, original_, outputs_, before_, expected_;
};

inline const std::vector<Op>& all_ops() {
  static const std::vector<Op> ops{Op::kBarrier, Op::kBroadcast, Op::kAllReduce,     Op::kReduce,  Op::kAllGather,
                                   Op::kGather,  Op::kScatter,   Op::kReduceScatter, Op::kAllToAll};
  return ops;
}

}  // namespace downpour::collective
