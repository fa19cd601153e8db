#include "csrc/ps/lease_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "csrc/base/error.h"
#include "csrc/base/random.h"

namespace downpour::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(EpochOrder, SequentialIsTheDataSetsOwnOrder) {
  EXPECT_THAT(epoch_order(4, 1, 0, Order::kSequential), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(epoch_order(0, 1, 0, Order::kShuffled), ElementsAre());
}

TEST(EpochOrder, ShuffledHoldsEverySampleOnceAndRepeatsForTheSameSeedAndEpoch) {
  std::vector<std::int64_t> order = epoch_order(1000, 7, 3, Order::kShuffled);
  EXPECT_EQ(order, epoch_order(1000, 7, 3, Order::kShuffled));
  std::ranges::sort(order);
  EXPECT_EQ(order, epoch_order(1000, 0, 0, Order::kSequential));
}

TEST(EpochOrder, EveryEpochAndEverySeedHasAnOrderOfItsOwn) {
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
      orders.insert(epoch_order(100, seed, epoch, Order::kShuffled));
    }
  }
  EXPECT_EQ(orders.size(), 64u);
}

TEST(EpochOrder, RefusesNegativeSizes) {
  EXPECT_THROW(epoch_order(-1, 0, 0, Order::kSequential), Error);
  EXPECT_THROW(epoch_order(1, 0, -1, Order::kSequential), Error);
}

std::vector<Lease> take(LeaseBook& book, int worker, int count) {
  std::vector<Lease> leases;
  for (int i = 0; i < count; ++i) {
    if (const auto lease = book.next(worker)) {
      leases.push_back(*lease);
    }
  }
  return leases;
}

TEST(LeaseBook, DealsEpochsInOrderWithAShortLastLease) {
  LeaseBook book(7, 3, 2);
  EXPECT_EQ(book.total(), 6u);
  EXPECT_THAT(take(book, 0, 9), ElementsAre(Lease{1, 0, 0, 3}, Lease{2, 0, 3, 6}, Lease{3, 0, 6, 7}, Lease{4, 1, 0, 3},
                                            Lease{5, 1, 3, 6}, Lease{6, 1, 6, 7}));
  EXPECT_FALSE(book.next(1));
  EXPECT_FALSE(book.all_done());
}

TEST(LeaseBook, WithoutSamplesOrEpochsIsDoneAtOnce) {
  for (LeaseBook book : {LeaseBook(0, 4, 5), LeaseBook(9, 4, 0)}) {
    EXPECT_TRUE(book.all_done());
    EXPECT_FALSE(book.next(0));
  }
  EXPECT_EQ(LeaseBook(0, 4, 5).epoch(), 5);
}

TEST(LeaseBook, RefusesSizesThatMakeNoLeases) {
  EXPECT_THROW(LeaseBook(-1, 1, 1), Error);
  EXPECT_THROW(LeaseBook(1, 0, 1), Error);
  EXPECT_THROW(LeaseBook(1, 1, -1), Error);
  EXPECT_THROW(LeaseBook(1, 1, std::int64_t{1} << 31), Error);
  EXPECT_THAT([] { LeaseBook(std::int64_t{1} << 62, 1, 4); }, ThrowsMessage<Error>(HasSubstr("2^44")));
}

TEST(LeaseBook, LargeSizesDoNotOverflow) {
  constexpr std::int64_t kSamples = std::numeric_limits<std::int64_t>::max();
  LeaseBook book(kSamples, kSamples - 1, 1);
  EXPECT_EQ(book.next(0)->end, kSamples - 1);
  EXPECT_EQ(book.next(0)->end, kSamples);
  EXPECT_FALSE(book.next(0));
}

TEST(LeaseBook, EpochIsThatOfTheOldestLeaseNotDone) {
  LeaseBook book(4, 2, 3);
  take(book, 0, 6);
  book.done(2);
  book.done(3);
  book.done(4);
  EXPECT_EQ(book.epoch(), 0);
  book.done(1);
  EXPECT_EQ(book.epoch(), 2);
  book.done(5);
  book.done(6);
  EXPECT_EQ(book.epoch(), 3);
  EXPECT_TRUE(book.all_done());
}

TEST(LeaseBook, RepeatsAndLeasesNeverGivenAreIgnored) {
  LeaseBook book(4, 1, 1);
  take(book, 0, 2);
  for (const std::uint64_t id : {0u, 1u, 1u, 3u, 4u, 99u}) {
    book.done(id);
  }
  EXPECT_EQ(book.done_count(), 1u);
  EXPECT_EQ(take(book, 0, 9).size(), 2u);
}

TEST(LeaseBook, AGivenBackLeaseIsGivenAgainFirstAndKeepsItsId) {
  LeaseBook book(8, 1, 1);
  take(book, 0, 3);
  take(book, 1, 1);
  book.done(2);
  EXPECT_EQ(book.give_back(0), 2);
  EXPECT_FALSE(book.holds(0));
  EXPECT_EQ(book.give_back(0), 0);
  EXPECT_THAT(take(book, 1, 3), ElementsAre(Lease{1, 0, 0, 1}, Lease{3, 0, 2, 3}, Lease{5, 0, 4, 5}));
  EXPECT_EQ(book.given_again(), 2u);
  EXPECT_TRUE(book.holds(1));
}

TEST(LeaseBook, TheWordOfAFormerHolderCounts) {
  LeaseBook book(2, 1, 1);
  take(book, 0, 2);
  book.give_back(0);
  book.done(1);  // before it was given again
  EXPECT_THAT(take(book, 1, 2), ElementsAre(Lease{2, 0, 1, 2}));
  book.done(2);  // after
  EXPECT_TRUE(book.all_done());
  EXPECT_FALSE(book.holds(1));
  EXPECT_EQ(book.give_back(1), 0);
  EXPECT_FALSE(book.next(0));
}

// ---- what an earlier job has done ---------------------------------------------------------------------------------

Agreement plan() {
  Agreement agreement;
  agreement.samples = 60000;
  agreement.lease_samples = 64;
  agreement.epochs = 3;
  agreement.seed = 1;
  return agreement;
}

LeaseTable table(std::uint64_t base, std::initializer_list<std::uint64_t> numbers) {
  LeaseTable leases;
  for (const std::uint64_t number : numbers) {
    leases.record(base + number);
  }
  return leases;
}

TEST(LeaseBook, AnotherPlanHasOtherIdsAndMoreEpochsHaveTheSame) {
  std::set<std::uint64_t> bases = {plan_base(plan())};
  const std::vector<std::function<void(Agreement&)>> changes = {
      [](Agreement& it) { ++it.samples; }, [](Agreement& it) { ++it.lease_samples; }, [](Agreement& it) { ++it.seed; },
      [](Agreement& it) { it.shuffle = 0; }};
  for (const auto& change : changes) {
    Agreement other = plan();
    change(other);
    bases.insert(plan_base(other));
  }
  EXPECT_EQ(bases.size(), 5u);
  Agreement longer = plan();
  longer.epochs = 30;
  EXPECT_EQ(plan_base(longer), plan_base(plan()));
}

TEST(LeaseBook, IdsOfAPlanStayBelowTheLimitAndNameTheirNumber) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Agreement agreement = plan();
    agreement.seed = seed;
    const std::uint64_t base = plan_base(agreement);
    ASSERT_LE(base + kMaxLeases, LeaseTable::kMaxLease);
    ASSERT_EQ(lease_number(base + 1), 1u);
    ASSERT_EQ(lease_number(base + kMaxLeases), kMaxLeases);
  }
  LeaseBook book(4, 1, 1, kMaxLeases + 1);
  EXPECT_EQ(book.next(0)->id, kMaxLeases + 2);
  book.done(1);  // of another plan
  EXPECT_EQ(book.done_count(), 0u);
  book.done(kMaxLeases + 2);
  EXPECT_EQ(book.done_count(), 1u);
}

TEST(LeaseBook, GoesOnBehindWhatAnEarlierJobHasDone) {
  constexpr std::uint64_t kBase = 100;
  LeaseBook book(5, 1, 2, kBase);
  LeaseTable earlier = table(kBase, {1, 2, 3, 5, 6, 10, 11, 40});
  earlier.record(kBase - 50);
  EXPECT_EQ(book.begin_after(earlier), 6u) << "11 and 40 are behind the end, the last one before the beginning";
  EXPECT_EQ(book.done_count(), 6u);
  const auto leases = take(book, 0, 20);
  EXPECT_THAT(leases, ElementsAre(Lease{kBase + 4, 0, 3, 4}, Lease{kBase + 7, 1, 1, 2}, Lease{kBase + 8, 1, 2, 3},
                                  Lease{kBase + 9, 1, 3, 4}));
  book.done(kBase + 5);  // done earlier: a repeat
  EXPECT_EQ(book.done_count(), 6u);
  EXPECT_EQ(book.epoch(), 0);
  book.done(kBase + 4);
  EXPECT_EQ(book.epoch(), 1);
  book.give_back(0);
  EXPECT_EQ(take(book, 1, 20).size(), 3u);
  for (const std::uint64_t number : {9, 8, 7}) {
    book.done(kBase + number);
  }
  EXPECT_TRUE(book.all_done());
  EXPECT_EQ(book.epoch(), 2);
}

TEST(LeaseBook, ThatWasDoneEarlierIsDoneAtOnceAndGoesOnWithMoreEpochs) {
  LeaseBook book(1'000'000'000, 1, 8);
  EXPECT_EQ(book.begin_after(LeaseTable::all()), book.total());
  EXPECT_TRUE(book.all_done());
  EXPECT_FALSE(book.next(0));
  LeaseBook longer(1'000'000'000, 1, 9);
  longer.begin_after(LeaseTable({1, 8'000'000'001}));
  EXPECT_THAT(longer.next(0), ::testing::Optional(Lease{8'000'000'001, 8, 0, 1}));
  EXPECT_EQ(longer.epoch(), 8);
}

TEST(LeaseBook, NothingDoneEarlierChangesNothing) {
  LeaseBook book(4, 1, 1), empty(0, 1, 1);
  EXPECT_EQ(book.begin_after({}), 0u);
  EXPECT_EQ(empty.begin_after(LeaseTable::all()), 0u);
  EXPECT_EQ(take(book, 0, 9).size(), 4u);
}

// A data set dealt to workers that die at random, some of them after their push was decided and before they could say so:
// every lease is done once, whatever happens, and together they cover every epoch.
class RandomDeaths : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomDeaths, EveryLeaseIsDoneExactlyOnceAnEpoch) {
  Random random(GetParam());
  const auto samples = static_cast<std::int64_t>(random.below(60));
  const auto epochs = static_cast<std::int64_t>(1 + random.below(4));
  LeaseBook book(samples, static_cast<std::int64_t>(1 + random.below(7)), epochs);
  constexpr int kWorkers = 4;
  std::map<int, std::vector<Lease>> held;
  std::map<std::uint64_t, Lease> decided;  // by the shards
  std::uint64_t given = 0, returned = 0;
  while (!book.all_done()) {
    const int worker = static_cast<int>(random.below(kWorkers));
    std::vector<Lease>& mine = held[worker];
    switch (random.below(8)) {
      case 0:
        returned += static_cast<std::uint64_t>(book.give_back(worker));
        mine.clear();
        break;
      case 1:
      case 2:
      case 3:
        if (const auto lease = book.next(worker)) {
          ASSERT_FALSE(decided.contains(lease->id) && book.done_count() == book.total());
          mine.push_back(*lease);
          ++given;
        }
        break;
      default:
        if (!mine.empty()) {
          const Lease lease = mine[random.below(mine.size())];
          decided.emplace(lease.id, lease);
          if (random.below(3) != 0) {  // else it dies, or tells later
            book.done(lease.id);
          }
        }
    }
  }
  EXPECT_EQ(book.done_count(), book.total());
  EXPECT_EQ(decided.size(), book.total());
  EXPECT_EQ(given, book.total() + book.given_again());
  EXPECT_GE(returned, book.given_again());
  std::map<std::pair<std::int64_t, std::int64_t>, int> uses;
  for (const auto& [id, lease] : decided) {
    for (std::int64_t at = lease.begin; at < lease.end; ++at) {
      ++uses[{lease.epoch, at}];
    }
  }
  EXPECT_EQ(uses.size(), static_cast<std::size_t>(samples * epochs));
  EXPECT_TRUE(std::ranges::all_of(uses, [](const auto& use) { return use.second == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomDeaths, ::testing::Range<std::uint64_t>(0, 200));

TEST(LeaseBook, ManyLeasesDoneOutOfOrderLeaveNothingBehind) {
  constexpr std::int64_t kLeases = 200'000;
  LeaseBook book(kLeases, 1, 1);
  std::vector<std::uint64_t> ids;
  while (const auto lease = book.next(static_cast<int>(ids.size() % 7))) {
    ids.push_back(lease->id);
  }
  for (const std::int64_t at : permutation(kLeases, 5)) {
    book.done(ids[static_cast<std::size_t>(at)]);
  }
  EXPECT_TRUE(book.all_done());
  EXPECT_EQ(book.epoch(), 1);
}

TEST(LeaseBook, ReopenedWhileGivenBackIsGivenOnce) {
  LeaseBook book(2, 1, 1);
  const std::uint64_t lease = book.next(0)->id;
  book.give_back(0);
  book.done(lease);
  book.reopen(LeaseTable({lease, lease + 1}));
  EXPECT_EQ(book.next(1)->id, lease);
  EXPECT_EQ(book.next(2)->id, lease + 1);
  EXPECT_FALSE(book.next(2));
}

TEST(LeaseBook, ReopenedLeasesAreGivenAgainAndDoneAgain) {
  LeaseBook book(6, 1, 1, 100);
  for (int i = 0; i < 5; ++i) {
    book.next(0);
  }
  for (const std::uint64_t id : {101, 102, 104}) {
    book.done(id);
  }
  book.reopen(LeaseTable({102, 105}));  // 103 is open and not done
  EXPECT_EQ(book.done_count(), 1u);
  EXPECT_FALSE(book.done_leases().decided(102));
  EXPECT_EQ(book.next(1)->id, 102u);
  EXPECT_EQ(book.next(1)->id, 104u);
  EXPECT_EQ(book.next(1)->id, 106u);
  EXPECT_EQ(book.give_back(1), 3);
  EXPECT_EQ(book.next(2)->id, 102u);
  for (const std::uint64_t id : {102, 102, 103, 104, 105, 106}) {
    book.done(id);
  }
  EXPECT_TRUE(book.all_done());
  EXPECT_EQ(book.done_leases(), LeaseTable({101, 107}));
}

}  // namespace
}  // namespace downpour::ps
