#include "tests/collective/plan_simulation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>

namespace downpour::collective {
namespace {

std::uint64_t mixed(std::uint64_t number) {  // the finalizer of splitmix64
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

void combine(Element& target, const Element& arrived) {
  target.sum += arrived.sum;
  target.value += arrived.value;
  target.order = mixed(target.order * 3 + mixed(arrived.order + 1));
}

// What is on its way: the bytes, or where they lie.
struct Message {
  std::vector<Element> taken;
  const Element* begin;
  std::int64_t count;
  int arrives;
};

struct RankState {
  std::size_t step = 0;
  bool posted = false;  // what the step sends
  bool handed_over = false;
  bool received = false;
  int clock = 0;  // rounds, when the step began
  int ends = 0;   // and when it is done, as far as one knows
};

class Simulation {
 public:
  Simulation(const std::vector<Plan>& plans, std::vector<Memory>& memories, const Delivery& delivery)
      : plans_(plans),
        memories_(memories),
        delivery_(delivery),
        world_(static_cast<int>(plans.size())),
        states_(plans.size()),
        links_(plans.size() * plans.size()),
        random_(mixed(delivery.chosen + 1)) {
    outcome_.sent_elements.resize(plans.size());
  }

  Outcome run() {
    for (int rank = 0; rank < world_; ++rank) {
      copy_first(rank);
    }
    while (outcome_.failure.empty() && act_once()) {
    }
    check_end();
    return outcome_;
  }

 private:
  std::deque<Message>& link(int from, int to) { return links_[static_cast<std::size_t>(from * world_ + to)]; }

  void fail(int rank, const std::string& what) {
    if (outcome_.failure.empty()) {
      outcome_.failure = concat("rank ", rank, ": ", what);
    }
  }

  bool fits(int rank, const Slice& slice) {
    const auto size = static_cast<std::int64_t>(memories_[rank].of(slice.buffer).size());
    if (slice.begin >= 0 && slice.count >= 0 && slice.begin <= size - slice.count) {
      return true;
    }
    fail(rank, concat("[", slice.begin, ",", slice.begin + slice.count, ") of buffer ", static_cast<int>(slice.buffer),
                      ", which has ", size));
    return false;
  }

  bool may_write(int rank, const Slice& slice) {
    if (slice.buffer != Buffer::kInput) {
      return fits(rank, slice);
    }
    fail(rank, "writes its input");
    return false;
  }

  Element* at(int rank, const Slice& slice) { return memories_[rank].of(slice.buffer).data() + slice.begin; }

  void copy_first(int rank) {
    memories_[rank].of(Buffer::kScratch).assign(plans_[rank].scratch, random_element(~std::uint64_t{0}));
    for (const Copy& copy : plans_[rank].copies) {
      if (!fits(rank, copy.from) || !may_write(rank, copy.to) || copy.from.count != copy.to.count) {
        return fail(rank, "a copy between different counts");
      }
      std::copy_n(at(rank, copy.from), copy.from.count, at(rank, copy.to));
    }
  }

  bool act_once() {
    const int first = first_to_ask();
    for (int i = 0; i < world_; ++i) {
      const int rank = (first + i) % world_;
      const bool last_choice = delivery_.turns == Turns::kOneBehind && rank == delivery_.chosen;
      if (!last_choice && act(rank)) {
        last_ = rank;
        return true;
      }
    }
    return delivery_.turns == Turns::kOneBehind && act(delivery_.chosen);
  }

  int first_to_ask() {
    switch (delivery_.turns) {
      case Turns::kInTurn: return (last_ + 1) % world_;
      case Turns::kRandom: random_ += 0x9e3779b97f4a7c15; return static_cast<int>(mixed(random_) % world_);
      case Turns::kOneAhead: return delivery_.chosen;
      case Turns::kOneBehind: return (last_ + 1) % world_;
    }
    return 0;
  }

  // One action of a rank, if it has one: to send, or to take what it waits for. False: it is done, or must wait.
  bool act(int rank) {
    RankState& state = states_[rank];
    if (state.step == plans_[rank].steps.size()) {
      return false;
    }
    const Step& step = plans_[rank].steps[state.step];
    const bool acts = !state.posted ? post(rank, step) : !state.received && take(rank, step);
    end_step(state);
    return acts;
  }

  bool post(int rank, const Step& step) {
    RankState& state = states_[rank];
    state.posted = true;
    state.received = step.from == Step::kNobody;
    if (step.to == Step::kNobody) {
      state.handed_over = true;
      return true;
    }
    const bool within = step.to == rank;
    if (!fits(rank, step.sent) || step.to < 0 || step.to >= world_ || within != (step.from == rank)) {
      fail(rank, concat("sends to ", step.to));
      return false;
    }
    Message message{{}, at(rank, step.sent), step.sent.count, state.clock + (within ? 0 : 1)};
    if (delivery_.links == Links::kBuffered) {
      message.taken.assign(message.begin, message.begin + message.count);
      message.begin = message.taken.data();
    }
    link(rank, step.to).push_back(std::move(message));
    state.handed_over = delivery_.links != Links::kRendezvous;
    state.ends = std::max(state.ends, link(rank, step.to).back().arrives);
    outcome_.sent_elements[rank] += within ? 0 : step.sent.count;
    return true;
  }

  bool take(int rank, const Step& step) {
    if (step.from < 0 || step.from >= world_ || link(step.from, rank).empty()) {
      return false;
    }
    Message message = std::move(link(step.from, rank).front());
    link(step.from, rank).pop_front();
    if (!may_write(rank, step.received) || message.count != step.received.count) {
      fail(rank, concat("waits for ", step.received.count, " from ", step.from, ", got ", message.count));
      return false;
    }
    apply(rank, message, at(rank, step.received), step.arrival);
    states_[rank].received = true;
    states_[rank].ends = std::max(states_[rank].ends, message.arrives);
    if (delivery_.links == Links::kRendezvous) {
      states_[step.from].handed_over = true;  // it waits in the step that sent it
      end_step(states_[step.from]);
    }
    return true;
  }

  void end_step(RankState& state) {
    if (state.handed_over && state.received) {
      outcome_.rounds = std::max(outcome_.rounds, state.ends);
      state = {.step = state.step + 1, .clock = state.ends, .ends = state.ends};
    }
  }

  void apply(int rank, const Message& message, Element* to, Arrival arrival) {
    for (std::int64_t i = 0; i < message.count; ++i) {
      if (arrival == Arrival::kCopy) {
        to[i] = message.begin[i];
        continue;
      }
      if (to[i].completed + message.begin[i].completed > 0) {
        return fail(rank, "reduces what is complete");
      }
      combine(to[i], message.begin[i]);
      to[i].completed = arrival == Arrival::kReduceLast ? 1 : 0;
    }
  }

  void check_end() {
    for (int rank = 0; rank < world_; ++rank) {
      if (states_[rank].step < plans_[rank].steps.size()) {
        fail(rank, concat("waits for ever in step ", states_[rank].step));
      }
    }
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].empty()) {
        fail(static_cast<int>(i) % world_, concat("leaves a message of rank ", static_cast<int>(i) / world_));
      }
    }
  }

  const std::vector<Plan>& plans_;
  std::vector<Memory>& memories_;
  const Delivery delivery_;
  const int world_;
  std::vector<RankState> states_;
  std::vector<std::deque<Message>> links_;
  std::uint64_t random_;
  int last_ = 0;
  Outcome outcome_;
};

// ---- what a call has and what must come out, written down from call.h alone -----------------------------------------

bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter; }

std::int64_t input_size(const CallShape& shape, int rank, int world) {
  switch (shape.op) {
    case Op::kAllGather:
    case Op::kGather: return shape.count;
    case Op::kScatter: return rank == shape.root ? shape.count * world : 0;
    case Op::kReduceScatter:
    case Op::kAllToAll: return shape.count * world;
    default: return 0;
  }
}

std::int64_t output_size(const CallShape& shape, int rank, int world) {
  switch (shape.op) {
    case Op::kBarrier: return 0;
    case Op::kAllGather:
    case Op::kAllToAll: return shape.count * world;
    case Op::kGather: return rank == shape.root ? shape.count * world : 0;
    default: return shape.count;
  }
}

// Of a reduction only what does not depend on the order: `sum` and `completed`.
Element reduction(const std::vector<Memory>& before, Buffer buffer, std::int64_t index) {
  Element result;
  for (const Memory& memory : before) {
    result.sum += memory.of(buffer)[index].sum;
  }
  result.completed = before.size() > 1 ? 1 : 0;
  return result;
}

Element expected(const CallShape& shape, const std::vector<Memory>& before, int rank, std::int64_t i) {
  const std::int64_t count = shape.count;
  switch (shape.op) {
    case Op::kBroadcast: return before[shape.root].of(Buffer::kOutput)[i];
    case Op::kAllReduce: return reduction(before, Buffer::kOutput, i);
    case Op::kReduce:
      return rank == shape.root ? reduction(before, Buffer::kOutput, i) : before[rank].of(Buffer::kOutput)[i];
    case Op::kAllGather:
    case Op::kGather: return before[i / count].of(Buffer::kInput)[i % count];
    case Op::kScatter: return before[shape.root].of(Buffer::kInput)[rank * count + i];
    case Op::kReduceScatter: return reduction(before, Buffer::kInput, rank * count + i);
    case Op::kAllToAll: return before[i / count].of(Buffer::kInput)[rank * count + i % count];
    case Op::kBarrier: break;
  }
  return {};
}

}  // namespace

bool same_bits(const Element& a, const Element& b) {
  const bool same_value = std::bit_cast<std::uint64_t>(a.value) == std::bit_cast<std::uint64_t>(b.value);
  return a.sum == b.sum && same_value && a.order == b.order && a.completed == b.completed;
}

Element random_element(std::uint64_t seed) {
  const std::uint64_t random = mixed(seed * 2 + 1);
  const double fraction = static_cast<double>(random >> 11) * 0x1p-53 - 0.5;
  return {random, std::ldexp(fraction, static_cast<int>(random % 81) - 40), mixed(random), 0};
}

std::vector<Element> random_elements(std::int64_t count, std::uint64_t seed) {
  std::vector<Element> elements(count);
  for (std::int64_t i = 0; i < count; ++i) {
    elements[i] = random_element(seed + i);
  }
  return elements;
}

std::vector<Memory> memories_for(const CallShape& shape, int world) {
  std::vector<Memory> memories(world);
  for (int rank = 0; rank < world; ++rank) {
    const std::uint64_t seed = static_cast<std::uint64_t>(rank) << 40;
    memories[rank].of(Buffer::kInput) = random_elements(input_size(shape, rank, world), seed);
    memories[rank].of(Buffer::kOutput) = random_elements(output_size(shape, rank, world), seed + (1ULL << 39));
  }
  return memories;
}

std::string difference(const CallShape& shape, const std::vector<Memory>& before, const std::vector<Memory>& after) {
  for (int rank = 0; rank < static_cast<int>(before.size()); ++rank) {
    const std::vector<Element>& output = after[rank].of(Buffer::kOutput);
    const bool is_reduced = reduces(shape.op) && (shape.op != Op::kReduce || rank == shape.root);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(output.size()); ++i) {
      const Element right = expected(shape, before, rank, i);
      const bool fits = right.sum == output[i].sum && right.completed == output[i].completed;
      const bool same_everywhere = shape.op != Op::kAllReduce || same_bits(output[i], after[0].of(Buffer::kOutput)[i]);
      if (!fits || !same_everywhere || (!is_reduced && !same_bits(right, output[i]))) {
        return concat("rank ", rank, ", element ", i);
      }
    }
  }
  return "";
}

bool same(const std::vector<Element>& a, const std::vector<Element>& b) {
  return std::ranges::equal(a, b, [](const Element& one, const Element& other) { return same_bits(one, other); });
}

Outcome simulate(const std::vector<Plan>& plans, std::vector<Memory>& memories, const Delivery& delivery) {
  return Simulation(plans, memories, delivery).run();
}

}  // namespace downpour::collective
