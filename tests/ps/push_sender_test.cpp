#include "csrc/ps/push_sender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "csrc/base/random.h"
#include "csrc/ps/push_assembly.h"

namespace downpour::ps {
namespace {

constexpr std::int64_t kFragmentBytes = 256;

struct Sent {
  std::uint64_t sequence, begin, end;
  bool last;
};

// A log in memory of its own, and a sender on it.
struct Desk {
  explicit Desk(const std::vector<std::int64_t>& sizes, std::uint32_t slots = 4)
      : layout(layout_of(sizes)), memory(slots * static_cast<std::size_t>(layout.buffer_bytes)) {
    log.move_to(memory, slots, nullptr);
  }
  static ShardLayout layout_of(const std::vector<std::int64_t>& sizes) {
    Schema schema;
    for (const std::int64_t size : sizes) {
      schema.parameters.push_back({"p" + std::to_string(schema.parameters.size()), {size}, Dtype::kFloat32, 0});
    }
    return partition(schema, 1)[0];
  }
  void begin() {
    log.begin(0, 0, {});
    sender.begin();
  }
  void add(std::size_t slice) {
    std::vector<float> gradient(static_cast<std::size_t>(layout.slices[slice].count));
    std::iota(gradient.begin(), gradient.end(), static_cast<float>(1000 * slice));
    while (sender.add_some(slice, reinterpret_cast<const std::byte*>(gradient.data()))) {
    }
  }
  void end() { log.end_newest(std::vector<Hyper>(1)); }
  std::vector<Sent> drain(std::size_t most = 1000000) {
    std::vector<Sent> sent;
    while (sent.size() < most) {
      const auto* fragment = sender.next();
      if (fragment == nullptr) {
        break;
      }
      sent.push_back({fragment->record->header.sequence, fragment->begin, fragment->end, fragment->last});
      sender.sent();
    }
    return sent;
  }
  // What a shard makes of it: refuses what breaks a rule.
  void assemble(const std::vector<Sent>& sent) {
    PushAssembly assembly(layout);
    for (const Sent& fragment : sent) {
      if (!assembly.is_open()) {
        assembly.begin(fragment.sequence, 0);
      }
      assembly.check_same(fragment.sequence, 0);
      ReplayRecord& record = *log.find(fragment.sequence);
      if (fragment.end > fragment.begin) {
        assembly.add(fragment.begin, fragment.end - fragment.begin);
      }
      if (fragment.last) {
        assembly.finish(record.header.present);
      }
    }
    EXPECT_FALSE(assembly.is_open());
  }

  ShardLayout layout;
  AlignedBytes memory;
  ReplayLog log{layout, 1};
  PushSender sender{layout, log, kFragmentBytes};
};

TEST(PushSender, AdjacentSlicesShareAFragmentInEitherDirection) {
  for (const bool descending : {false, true}) {
    Desk desk({16, 5, 16, 16});
    desk.begin();
    for (const std::size_t i : {0u, 1u, 2u, 3u}) {
      desk.add(descending ? 3 - i : i);
    }
    desk.end();
    const auto sent = desk.drain();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].begin, 0u);
    EXPECT_EQ(sent[0].end, 256u);
    EXPECT_TRUE(sent.back().last);
    desk.assemble(sent);
  }
}

TEST(PushSender, TheHeaderSaysWhatTheCopyFound) {
  Desk desk({3, 40, 5});  // the second one is cut; its elements are 1000, 1001, ...
  desk.begin();
  EXPECT_TRUE(desk.log.newest().checks[0].finite);
  double squares = 0;
  for (int i = 0; i < 40; ++i) {
    squares += (1000.0 + i) * (1000.0 + i);
  }
  desk.add(1);
  desk.add(0);
  EXPECT_TRUE(desk.log.newest().checks[0].finite);
  EXPECT_EQ(desk.log.newest().checks[0].squared_norm, squares + 0 + 1 + 4);
  const std::vector<float> bad(5, std::numeric_limits<float>::infinity());
  while (desk.sender.add_some(2, reinterpret_cast<const std::byte*>(bad.data()))) {
  }
  EXPECT_FALSE(desk.log.newest().checks[0].finite);
  desk.end();
  EXPECT_FALSE(desk.log.newest().header.check.finite);
  desk.begin();
  EXPECT_TRUE(desk.log.newest().checks[0].finite);
}

TEST(PushSender, AnAbsentSliceIsNeverCovered) {
  Desk desk({16, 16, 16});
  desk.begin();
  desk.add(2);
  desk.add(0);
  desk.end();
  const auto sent = desk.drain();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].begin, 128u);
  EXPECT_EQ(sent[1].begin, 0u);
  desk.assemble(sent);
}

TEST(PushSender, AFullFragmentLeavesBeforeTheSliceIsWhole) {
  Desk desk({1000});
  desk.begin();
  const std::vector<float> gradient(1000, 1);
  ASSERT_TRUE(desk.sender.add_some(0, reinterpret_cast<const std::byte*>(gradient.data())));
  ASSERT_NE(desk.sender.next(), nullptr);
  EXPECT_EQ(desk.sender.next()->end, 256u);
  EXPECT_FALSE(desk.sender.next()->last);
}

TEST(PushSender, AnEmptyPushIsItsLastFragmentAlone) {
  Desk desk({10});
  desk.begin();
  EXPECT_EQ(desk.sender.next(), nullptr);
  desk.end();
  const auto sent = desk.drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].last);
  EXPECT_EQ(sent[0].begin, sent[0].end);
}

TEST(PushSender, SendsAgainWholeAndInOrderAndGoesOnWithTheOpenOne) {
  Desk desk({300, 7, 20});
  for (int i = 0; i < 2; ++i) {
    desk.begin();
    desk.add(1);
    desk.add(0);
    desk.end();
    desk.drain();
  }
  desk.begin();
  desk.add(2);
  desk.add(0);
  desk.drain();
  desk.sender.restart(0, 0);
  auto sent = desk.drain();
  desk.add(1);
  desk.end();
  for (const Sent& more : desk.drain()) {
    sent.push_back(more);
  }
  EXPECT_EQ(std::count_if(sent.begin(), sent.end(), [](const Sent& s) { return s.last; }), 3);
  desk.assemble(sent);
}

TEST(PushSender, OfPushesThatTheShardKnowsTheHeaderAlone) {
  Desk desk({300});
  for (int i = 0; i < 3; ++i) {
    desk.begin();
    desk.add(0);
    desk.end();
    desk.drain();
  }
  desk.sender.restart(1, 2);
  const auto sent = desk.drain();
  EXPECT_EQ(sent[0].sequence, 1u);
  EXPECT_TRUE(sent[0].last);
  EXPECT_EQ(sent[1].sequence, 2u);
  EXPECT_FALSE(sent[1].last);
}

// Any sizes, any order, any subset, broken off anywhere: every byte of what is present arrives once.
TEST(PushSender, EveryElementIsSentExactlyOnce) {
  Random random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int64_t> sizes(1 + random.below(8));
    for (std::int64_t& size : sizes) {
      size = static_cast<std::int64_t>(1 + random.below(200));
    }
    Desk desk(sizes);
    desk.begin();
    std::vector<std::int64_t> order = permutation(static_cast<std::int64_t>(sizes.size()), random.next());
    order.resize(random.below(order.size() + 1));
    std::vector<Sent> sent;
    for (const std::int64_t slice : order) {
      desk.add(static_cast<std::size_t>(slice));
      for (const Sent& some : desk.drain(random.below(4))) {
        sent.push_back(some);
      }
      if (random.below(6) == 0) {
        desk.sender.restart(0, 0);
        sent.clear();
      }
    }
    desk.end();
    if (random.below(4) == 0) {
      desk.sender.restart(0, 0);
      sent.clear();
    }
    for (const Sent& rest : desk.drain()) {
      sent.push_back(rest);
    }
    desk.assemble(sent);
    const auto* values = reinterpret_cast<const float*>(desk.log.slot(desk.log.newest()).data());
    for (const std::int64_t slice : order) {
      const Slice& s = desk.layout.slices[static_cast<std::size_t>(slice)];
      EXPECT_EQ(values[s.offset_bytes / 4 + s.count - 1], static_cast<float>(1000 * slice + s.count - 1));
    }
  }
}

}  // namespace
}  // namespace downpour::ps
