#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/checksum.h"
#include "tests/collective/folder_bulletin.h"
#include "tests/collective/group_threads.h"
#include "tests/collective/processes.h"
#include "tests/collective/samples.h"

// Ranks that are processes, one of which is killed or stopped.
namespace downpour::collective {
namespace {

constexpr int kWorld = 3;
constexpr std::int64_t kCount = 400'003;  // several pieces, several slots
constexpr std::int64_t kArenaBytes = 4 * kCount;
constexpr Duration kPatience = std::chrono::seconds(60);
constexpr Duration kShortPatience = std::chrono::milliseconds(300);
constexpr Duration kSlack = std::chrono::seconds(20);  // a full machine, sanitizers
constexpr char kBegun = 'c', kFailed = 'f', kGoOn = 'g', kEnded = 'e', kCompared = 'd';

enum class Moment { kBetweenCalls, kInCalls };

// What a test case runs over and over: an operation over memory of its own, or one in an arena.
enum class Where { kOwnMemory, kArena };

class Work {
 public:
  Work(Group& group, Op op, Where where)
      : group_(group),
        arena_(group.allocate(kArenaBytes, kPatience)),
        own_(op, ReduceOp::kMaximum, 0, kCount, group.rank(), group.world()),
        call_(own_.call()),
        is_in_arena_(where == Where::kArena) {
    const auto values = samples<float>(group.rank(), kCount);
    std::memcpy(arena_.get(), values.data(), static_cast<std::size_t>(kArenaBytes));
    if (is_in_arena_) {
      call_.outputs = {arena()};
    }
  }
  void run(Duration timeout) { group_.run(call_, timeout); }
  // Of all memory that calls may have touched.
  std::uint64_t sum() const {
    Checksum sum;
    sum.add(arena());
    for (const MutableBytes output : call_.outputs) {
      sum.add(output);
    }
    for (const Bytes input : call_.inputs) {
      sum.add(input);
    }
    return sum.value();
  }
  // A maximum is the same however often it is formed.
  bool is_right() const {
    const auto* const values = reinterpret_cast<const float*>(arena_.get());
    for (std::int64_t i = 0; is_in_arena_ && i < kCount; ++i) {
      if (values[i] != expected_reduction<float>(ReduceOp::kMaximum, kWorld, i)) {
        return false;
      }
    }
    return is_in_arena_ || own_.is_right();
  }

 private:
  MutableBytes arena() const { return {arena_.get(), static_cast<std::size_t>(kArenaBytes)}; }
  Group& group_;
  std::shared_ptr<std::byte> arena_;
  RankCall<float> own_;
  Call call_;
  bool is_in_arena_;
};

struct Case {
  Medium medium;
  Op op;
  Where where;
  Moment moment;
  int victim() const { return (static_cast<int>(op) + static_cast<int>(moment)) % kWorld; }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Medium medium : {Medium::kSharedMemory, Medium::kTcp, Medium::kBoth}) {
    for (const Moment moment : {Moment::kBetweenCalls, Moment::kInCalls}) {
      for (const Op op : all_ops()) {
        cases.push_back({medium, op, Where::kOwnMemory, moment});
      }
      cases.push_back({medium, Op::kAllReduce, Where::kArena, moment});
    }
  }
  return cases;
}

// Each waits for deadlines: one moment for every operation, in turn.
std::vector<Case> every_second(const std::vector<Case>& cases) {
  std::vector<Case> half;
  std::ranges::copy_if(cases, std::back_inserter(half), [](const Case& with) {
    const bool is_even = (static_cast<int>(with.op) + static_cast<int>(with.where)) % 2 == 0;
    return (with.moment == Moment::kInCalls) == is_even;
  });
  return half;
}

class GroupFaults : public testing::TestWithParam<Case> {
 protected:
  // Calls go on until one fails; returns why.
  static std::string run_until_failure(Work& work, Duration timeout) {
    for (;;) {
      const TimePoint begun = std::chrono::steady_clock::now();
      try {
        work.run(timeout);
        DOWNPOUR_CHECK(work.is_right(), "a call went well, and what it left is wrong");
      } catch (const CommError& error) {  // not of a caller's mistake
        const Duration took = std::chrono::steady_clock::now() - begun;
        DOWNPOUR_CHECK(took < timeout + kSlack, "it took ", seconds(took), " s to hear: ", error.what());
        return error.what();
      }
    }
  }
  static void expect_text(const std::string& found, const std::string& expected) {
    DOWNPOUR_CHECK(found.find(expected) != std::string::npos, "expected '", expected, "', found '", found, "'");
  }
  std::unique_ptr<Group> form(int rank, int world, const std::string& name) const {
    bulletins_.push_back(std::make_unique<FolderBulletin>(folder_.path() / name));
    return Group::form(*bulletins_.back(), options_of(GetParam().medium, rank, world));
  }
  // The survivors can work together again, while the broken group is still there.
  void form_anew(int rank) const {
    const int victim = GetParam().victim();
    const auto group = form(rank - (rank > victim ? 1 : 0), kWorld - 1, "second");
    RankCall<float> call(Op::kAllReduce, ReduceOp::kSum, 0, 1000, group->rank(), group->world());
    group->run(call.call(), kPatience);
    DOWNPOUR_CHECK(call.is_right(), "the new group's sum is wrong");
    group->run({}, kPatience);
  }

  TestFolder folder_;
  mutable std::vector<std::unique_ptr<FolderBulletin>> bulletins_;
};

class GroupKills : public GroupFaults {};
class GroupStops : public GroupFaults {};

TEST_P(GroupKills, AKilledRankIsNamedAndTheOthersGoOnWithoutIt) {
  const auto& [medium, op, where, moment] = GetParam();
  const int victim = GetParam().victim();
  const Processes processes(kWorld, [&, op = op, where = where, moment = moment](int rank, const Line& test) {
    const auto group = form(rank, kWorld, "first");
    Work work(*group, op, where);
    work.run(kPatience);
    test.say(kBegun);
    if (rank == victim && moment == Moment::kBetweenCalls) {
      test.hear();  // and is killed
    }
    expect_text(run_until_failure(work, kPatience), concat("rank ", victim, " is lost"));
    form_anew(rank);
    test.say(kEnded);
  });
  for (int rank = 0; rank < kWorld; ++rank) {
    processes.with(rank).expect(kBegun);
  }
  processes.signal(victim, SIGKILL);
  processes.for_each_other(victim, [](const Line& survivor) { survivor.expect(kEnded); });
}

// What comes to itself when the others have given it up: it changes no byte of theirs, and hears that it is out.
TEST_P(GroupStops, AStoppedRankThatGoesOnLaterHarmsNobody) {
  const auto& [medium, op, where, moment] = GetParam();
  const int victim = GetParam().victim();
  const Processes processes(kWorld, [&, op = op, where = where, moment = moment](int rank, const Line& test) {
    const auto group = form(rank, kWorld, "first");
    Work work(*group, op, where);
    work.run(kPatience);
    test.say(kBegun);
    if (rank == victim) {
      if (moment == Moment::kBetweenCalls) {
        test.expect(kGoOn);
      }
      run_until_failure(work, kPatience);
      test.say(kEnded);
      return;
    }
    expect_text(run_until_failure(work, kShortPatience), concat("rank ", victim, " did not come within "));
    const std::uint64_t before = work.sum();
    test.say(kFailed);
    test.expect(kGoOn);
    DOWNPOUR_CHECK(work.sum() == before, "memory changed after the call had failed");
    form_anew(rank);
    test.say(kCompared);
  });
  for (int rank = 0; rank < kWorld; ++rank) {
    processes.with(rank).expect(kBegun);
  }
  processes.signal(victim, SIGSTOP);
  processes.for_each_other(victim, [](const Line& survivor) { survivor.expect(kFailed); });
  if (moment == Moment::kBetweenCalls) {
    processes.with(victim).say(kGoOn);
  }
  processes.signal(victim, SIGCONT);
  processes.with(victim).expect(kEnded);
  processes.for_each_other(victim, [](const Line& survivor) { survivor.say(kGoOn); });
  processes.for_each_other(victim, [](const Line& survivor) { survivor.expect(kCompared); });
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [medium, op, where, moment] = tested.param;
  return concat(name(medium), "_", name(op), where == Where::kArena ? "_in_an_arena" : "",
                moment == Moment::kInCalls ? "_in_calls" : "_between_calls");
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupKills, testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Cases, GroupStops, testing::ValuesIn(every_second(all_cases())), name_of);

}  // namespace
}  // namespace downpour::collective
