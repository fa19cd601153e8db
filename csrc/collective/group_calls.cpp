#include <array>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collective/group_state.h"
#include "csrc/collective/reduce.h"

namespace downpour::collective {
namespace {

// The call as its parts see it: the average is the sum, divided where it is complete.
Call summing(const Call& call) {
  Call result = call;
  if (result.shape.reduce == ReduceOp::kAverage) {
    result.shape.reduce = ReduceOp::kSum;
  }
  return result;
}

// Of these the parts within machines and the part among their first ranks make up the whole; of the others every byte goes to another
// rank, which its own link does as well.
bool has_two_levels(Op op) { return op == Op::kBarrier || op == Op::kBroadcast || op == Op::kAllReduce; }

Call with(const Call& call, Op op, int root) {
  Call result = call;
  result.shape.op = op;
  result.shape.root = root;
  return result;
}

// A call over links that takes longer may be stuck because the ranks are in different ones.
constexpr Duration kPatience = std::chrono::milliseconds(500);

}  // namespace

void Group::State::perform(const Call& call, Duration timeout) {
  const Attempt now = attempt(call.shape, timeout);
  guarded([&] { perform_checked(call, now); });
}

Attempt Group::State::attempt(const CallShape& shape, Duration timeout) {
  const TimePoint now = clock.now();
  return {shape, record(shape), now, now + timeout};
}

// What fails breaks the group, but for a disagreement: members of one team have met and go on. Ranks that have only links are out
// of step.
void Group::State::guarded(const std::function<void()>& work) {
  try {
    check_unbroken();
    work();
  } catch (const CommError&) {
    give_up(std::current_exception());
  } catch (const Error&) {
    if (machines->count() == 1 && error() == nullptr) {
      throw;
    }
    give_up(std::current_exception());
  } catch (...) {
    give_up(std::current_exception());
  }
}

void Group::State::give_up(const std::exception_ptr& why) {
  break_up(why);
  keep_memory();
  std::rethrow_exception(error());  // the first reason
}

void Group::State::perform_checked(const Call& call, const Attempt& attempt) {
  const bool one_machine = machines->count() == 1;
  if (one_machine && team) {
    run_call(*team, arenas, call, attempt);
    return;
  }
  try {
    if (one_machine || machines->count() == options.world || !has_two_levels(call.shape.op)) {
      over_links(call, attempt, options.rank, {links.all().begin(), links.all().end()});
    } else {
      in_two_levels(call, attempt);
    }
  } catch (const TimeoutError&) {
    name_late(attempt);
    throw;
  }
}

// All ranks of a machine to its first, these among each other, and back.
void Group::State::in_two_levels(const Call& call, const Attempt& attempt) {
  const int root = call.shape.root;
  const bool is_broadcast = call.shape.op == Op::kBroadcast;
  const Call sum = summing(call);
  if (call.shape.op == Op::kAllReduce) {
    among_members(with(sum, Op::kReduce, 0), attempt);
  } else if (!is_broadcast || machines->of(root) == my_machine()) {
    among_members(with(call, call.shape.op, is_broadcast ? machines->member(root) : 0), attempt);
  }
  if (machines->leader(my_machine()) == options.rank) {
    among_leaders(with(sum, call.shape.op, is_broadcast ? machines->of(root) : 0), attempt);
    if (call.shape.op == Op::kAllReduce && call.shape.reduce == ReduceOp::kAverage) {
      divide(call);
    }
  }
  if (!is_broadcast || machines->of(root) != my_machine()) {
    among_members(with(call, is_broadcast || call.shape.op == Op::kAllReduce ? Op::kBroadcast : Op::kBarrier, 0),
                  attempt);
  }
}

void Group::State::divide(const Call& call) const {
  void* const result = call.outputs.front().data();
  const std::array<const void*, 1> sources{result};
  reduce({call.shape.type, ReduceOp::kAverage, options.world}, result, sources, call.shape.count);
}

void Group::State::among_members(const Call& call, const Attempt& attempt) {
  if (team) {
    run_call(*team, {}, call, attempt);
  }
}

void Group::State::among_leaders(const Call& call, const Attempt& attempt) {
  std::vector<Link*> leaders;
  for (int machine = 0; machine < machines->count(); ++machine) {
    leaders.push_back(&links.to(machines->leader(machine)));
  }
  over_links(call, attempt, my_machine(), leaders);
}

// On the links' thread, while this one waits.
void Group::State::over_links(const Call& call, const Attempt& attempt, int position, const std::vector<Link*>& among) {
  const PieceHeader header{attempt.number, attempt.shape};
  if (options.world == 1) {
    PlanRun(call, header, position, among).advance();
    return;
  }
  const auto done = std::make_shared<Operation>();
  loop.post([&, done] { start_plan(call, header, position, among, done); });
  if (!done->wait(std::min(attempt.deadline, clock.now() + kPatience))) {
    loop.post([this, header] { compare_with_all(header); });
  }
  if (!done->wait(attempt.deadline)) {
    int awaited = Step::kNobody;
    on_links_thread([&] { awaited = drop_plan(); });
    DOWNPOUR_CHECK_AS(TimeoutError, done->is_done(), to_string(attempt), ": rank ",
                      among[static_cast<std::size_t>(awaited)]->peer(), " did not come within ",
                      seconds(attempt.deadline - attempt.begun), " s");
  }
  if (const auto error = done->error()) {
    std::rethrow_exception(error);
  }
}

void Group::State::start_plan(const Call& call, const PieceHeader& header, int position, std::span<Link* const> among,
                              const std::shared_ptr<Operation>& done) {
  if (const auto why = error()) {
    done->finish(why);
    return;
  }
  plan_done = done;
  try {
    plan = std::make_unique<PlanRun>(call, header, position, among);
  } catch (...) {
    end_plan(std::current_exception());
  }
  advance();
}

void Group::State::advance() {
  if (plan == nullptr) {
    return;
  }
  try {
    if (plan->advance()) {
      end_plan(nullptr);
    }
  } catch (...) {
    end_plan(std::current_exception());
  }
}

void Group::State::end_plan(std::exception_ptr why) {
  plan.reset();
  if (const auto done = std::exchange(plan_done, nullptr)) {
    done->finish(std::move(why));
  }
}

// Whom it waited for; its memory is not touched any more.
int Group::State::drop_plan() {
  const int missing = plan ? plan->waits_for() : Step::kNobody;
  plan.reset();
  plan_done = nullptr;
  return missing;
}

}  // namespace downpour::collective
