#include "csrc/collective/team_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/collective/samples.h"
#include "tests/collective/team_threads.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

const std::vector<std::int64_t> kCounts{0, 1, 7, 1009, 40'009, 270'029};  // the last one over more than a slot

class TeamCalls : public testing::TestWithParam<int> {};

TEST_P(TeamCalls, EveryOperationOverEverySizeIsRight) {
  TeamThreads threads(GetParam());
  const int world = threads.size();
  std::atomic<int> wrong{0};
  threads.run([&](Team& team) {
    std::uint64_t number = 0;
    for (const Op op : all_ops()) {
      for (const std::int64_t count : kCounts) {
        for (const int root : {0, world - 1}) {
          RankCall<float> rank(op, ReduceOp::kSum, root, count, team.member(), world);
          run_call(team, {}, rank.call(), threads.attempt(rank.call().shape, number++));
          wrong += rank.is_right() ? 0 : 1;
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamCalls, EveryReductionOfEveryElementSizeIsRight) {
  TeamThreads threads(GetParam());
  const int world = threads.size();
  std::atomic<int> wrong{0};
  const auto check = [&]<typename T>(Team& team, T, std::uint64_t& number, bool floating) {
    for (int value = 1; value <= static_cast<int>(kLastReduceOp); ++value) {
      const auto reduce = static_cast<ReduceOp>(value);
      if (is_supported(element_type<T>(), reduce) && (floating || reduce != ReduceOp::kAverage)) {
        for (const Op op : {Op::kAllReduce, Op::kReduce, Op::kReduceScatter}) {
          RankCall<T> rank(op, reduce, 0, 17'003, team.member(), world);
          run_call(team, {}, rank.call(), threads.attempt(rank.call().shape, number++));
          wrong += rank.is_right() ? 0 : 1;
        }
      }
    }
  };
  threads.run([&](Team& team) {
    std::uint64_t number = 0;
    check(team, float{}, number, true);
    check(team, double{}, number, true);
    check(team, std::int32_t{}, number, false);
    check(team, std::int64_t{}, number, false);
    check(team, std::uint8_t{}, number, false);
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamCalls, SlicesOfDifferentSizesAreExchanged) {
  TeamThreads threads(GetParam());
  std::atomic<int> wrong{0};
  threads.run([&](Team& team) {
    for (std::uint64_t number = 0; number < 3; ++number) {
      RankCall<std::int32_t> rank(Op::kAllToAll, ReduceOp::kSum, 0, CallShape::kUneven, team.member(), team.size());
      run_call(team, {}, rank.call(), threads.attempt(rank.call().shape, number));
      wrong += rank.is_right() ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamCalls, ATensorInAnArenaIsReducedWhereItLies) {
  TeamThreads threads(GetParam());
  const std::int64_t count = 40'013;
  const std::vector<Arena> arenas{threads.arena(0, 64), threads.arena(1, 256 * 1024)};
  std::atomic<int> wrong{0};
  threads.run([&](Team& team) {
    const MutableBytes part = arenas[1].parts[static_cast<std::size_t>(team.member())];
    for (std::uint64_t number = 0; number < 4; ++number) {
      const auto values = samples<float>(team.member(), count);
      const MutableBytes tensor = part.subspan(64 * number, values.size() * sizeof(float));
      std::memcpy(tensor.data(), values.data(), tensor.size());
      const Call call{{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kAverage, 0, count}, {}, {tensor}};
      run_call(team, arenas, call, threads.attempt(call.shape, number));
      for (std::int64_t i = 0; i < count; ++i) {
        const float expected = expected_reduction<float>(ReduceOp::kAverage, team.size(), i);
        wrong += reinterpret_cast<const float*>(tensor.data())[i] == expected ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamCalls, ATensorInAnArenaMeetsOnesOutsideOrElsewhere) {
  TeamThreads threads(GetParam());
  const std::int64_t count = 40'013;
  const std::vector<Arena> arenas{threads.arena(0, 256 * 1024)};
  std::atomic<int> wrong{0};
  threads.run([&](Team& team) {
    for (const bool outside : {true, false}) {
      auto values = samples<float>(team.member(), count);
      const MutableBytes part = arenas[0].parts[static_cast<std::size_t>(team.member())];
      MutableBytes tensor = bytes_of(values);
      if (team.member() == 0 || !outside) {
        tensor = part.subspan(static_cast<std::size_t>(team.member()) * 4, tensor.size());
        std::memcpy(tensor.data(), values.data(), tensor.size());
      }
      const Call call{{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, count}, {}, {tensor}};
      run_call(team, arenas, call, threads.attempt(call.shape, outside ? 0 : 1));
      std::memcpy(values.data(), tensor.data(), tensor.size());
      for (std::int64_t i = 0; i < count; ++i) {
        wrong +=
            values[static_cast<std::size_t>(i)] == expected_reduction<float>(ReduceOp::kSum, team.size(), i) ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamCalls, SumsHaveTheSameBitsOnEveryMember) {
  TeamThreads threads(GetParam());
  for (const std::int64_t count : {5'000, 300'007}) {
    std::vector<std::vector<float>> values(static_cast<std::size_t>(threads.size()));
    threads.run([&](Team& team) {
      auto& mine = values[static_cast<std::size_t>(team.member())];
      for (std::int64_t i = 0; i < count; ++i) {
        mine.push_back(1.0f / static_cast<float>(1 + i + 31 * team.member()) * (i % 3 == 0 ? 1e6f : -1e-3f));
      }
      const Call call{{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, count}, {}, {bytes_of(mine)}};
      run_call(team, {}, call, threads.attempt(call.shape, static_cast<std::uint64_t>(count)));
    });
    for (const auto& other : values) {
      EXPECT_EQ(0, std::memcmp(other.data(), values.front().data(), other.size() * sizeof(float)));
    }
  }
}

class TeamDisagreements : public testing::TestWithParam<int> {};

TEST_P(TeamDisagreements, AllMembersHearOfItAndGoOn) {
  TeamThreads threads(GetParam());
  const std::vector<CallShape> others{
      {Op::kBroadcast, ElementType::kFloat32, ReduceOp::kSum, 0, 1000},
      {Op::kAllReduce, ElementType::kInt32, ReduceOp::kSum, 0, 1000},
      {Op::kAllReduce, ElementType::kFloat32, ReduceOp::kMaximum, 0, 1000},
      {Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, 999},
  };
  const CallShape shape{Op::kAllReduce, ElementType::kFloat32, ReduceOp::kSum, 0, 1000};
  std::atomic<int> heard{0};
  std::atomic<int> wrong{0};
  threads.run([&](Team& team) {
    std::uint64_t number = 0;
    for (const CallShape& other : others) {
      std::vector<float> values(1000, 5);
      Call call{team.member() == 1 ? other : shape, {}, {bytes_of(values)}};
      call.outputs[0] = call.outputs[0].first(static_cast<std::size_t>(call.shape.count) * 4);
      try {
        run_call(team, {}, call, threads.attempt(call.shape, number++));
      } catch (const Error& error) {
        const std::string text = error.what();
        heard += text.find("rank 1 " + to_string(other)) != std::string::npos &&
                 text.find("rank 0 " + to_string(shape)) != std::string::npos;
      }
      wrong += values == std::vector<float>(1000, 5) ? 0 : 1;
      RankCall<float> after(Op::kAllReduce, ReduceOp::kSum, 0, 1009, team.member(), team.size());
      run_call(team, {}, after.call(), threads.attempt(after.call().shape, number++));
      wrong += after.is_right() ? 0 : 1;
    }
  });
  EXPECT_EQ(heard, threads.size() * static_cast<int>(others.size()));
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Members, TeamCalls, testing::Values(1, 2, 3, 4, 7));
INSTANTIATE_TEST_SUITE_P(Members, TeamDisagreements, testing::Values(2, 3, 4, 7));

TEST(TeamEndings, AMemberThatDoesNotComeIsNamed) {
  TeamThreads threads(3);
  const Call call{{}, {}, {}};
  std::atomic<int> named{0};
  threads.run([&](Team& team) {
    if (team.member() == 1) {
      return;
    }
    try {
      run_call(team, {}, call, threads.attempt(call.shape, 17, std::chrono::milliseconds(50)));
    } catch (const TimeoutError& error) {
      named += std::string(error.what()).find("barrier (call 17): rank 1 did not come within 0.") != std::string::npos;
    }
    EXPECT_THROW(run_call(team, {}, call, threads.attempt(call.shape)), TimeoutError) << "a broken team stays broken";
  });
  EXPECT_EQ(named, 2);
}

TEST(TeamEndings, AnAbortWakesWhoeverWaitsAndItsFirstReasonCounts) {
  TeamThreads threads(2);
  const Call call{{}, {}, {}};
  std::thread waiter([&] {
    try {
      run_call(threads.team(0), {}, call, threads.attempt(call.shape));
      ADD_FAILURE() << "member 1 never came";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 is lost"));
    }
  });
  threads.team(0).abort(std::make_exception_ptr(PeerLostError("rank 1 is lost")));
  threads.team(0).abort(std::make_exception_ptr(PeerLostError("another reason")));
  waiter.join();
}

}  // namespace
}  // namespace downpour::collective
