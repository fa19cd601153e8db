#include "csrc/collective/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "csrc/transport/inproc.h"
#include "tests/collective/samples.h"

namespace downpour::collective {
namespace {

using testing::HasSubstr;

// One rank with messages, over a network that the test turns by hand.
class Mailbox final : public LinksUser {
 public:
  Mailbox(transport::InprocNetwork& network, int rank, int world)
      : links_(options(rank, world), *this), messages_(links_) {
    listener_ = network.listen(concat("rank ", rank), links_);
    links_.connect([&](int peer, const transport::Hello& hello, transport::Receiver& receiver,
                       const transport::ConnectOptions& terms) {
      return network.connect(concat("rank ", peer), hello, receiver, terms);
    });
  }
  ~Mailbox() override { links_.close(); }
  Messages& messages() { return messages_; }
  void leave() { links_.close(); }

  void on_links_open() override {}
  void on_pieces() override { messages_.on_room(); }
  void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) override {
    messages_.on_message(link, type, body, bulk);
  }
  void on_left(int rank) override { messages_.leave(rank); }
  void on_broken(std::exception_ptr why) override { messages_.fail(why); }

 private:
  static LinksOptions options(int rank, int world) {
    LinksOptions options;
    options.rank = rank;
    options.world = world;
    return options;
  }
  Links links_;
  Messages messages_;
  std::unique_ptr<transport::Listener> listener_;
};

struct Sending {
  std::vector<std::int32_t> values;
  bool done = false;
  std::string why;
  Sending(Mailbox& from, int to, int tag, std::int64_t count, int seed) : values(samples<std::int32_t>(seed, count)) {
    from.messages().send(to, tag, std::as_bytes(std::span(values)), [this](std::exception_ptr error) {
      done = true;
      why = text_of(error);
    });
  }
};

struct Receiving {
  std::vector<std::int32_t> values;
  int source = -2;
  std::string why;
  Receiving(Mailbox& at, int from, int tag, std::int64_t count) : values(static_cast<std::size_t>(count)) {
    at.messages().receive(from, tag, bytes_of(values), [this](int rank, std::exception_ptr error) {
      source = rank;
      why = text_of(error);
    });
  }
  bool has(int seed) const {
    return source >= 0 && why.empty() &&
           values == samples<std::int32_t>(seed, static_cast<std::int64_t>(values.size()));
  }
};

class MessagesTest : public testing::Test {
 protected:
  transport::InprocNetwork network_;
  Mailbox zero_{network_, 0, 3};
  Mailbox one_{network_, 1, 3};
  Mailbox two_{network_, 2, 3};
  MessagesTest() { network_.deliver_all(); }
};

TEST_F(MessagesTest, EverySizeArrivesWhicheverSideIsFirst) {
  for (const std::int64_t count : {0, 1, 1024, 1025, 100'003, 1'000'003}) {
    for (const bool receiver_first : {false, true}) {
      std::optional<Receiving> receiving;
      if (receiver_first) {
        receiving.emplace(one_, 0, 5, count);
        network_.deliver_all();
      }
      Sending sending(zero_, 1, 5, count, 2);
      network_.deliver_all();
      if (!receiver_first) {
        receiving.emplace(one_, 0, 5, count);
        network_.deliver_all();
      }
      EXPECT_TRUE(receiving->has(2)) << count;
      EXPECT_TRUE(sending.done) << count;
      EXPECT_EQ(sending.why, "");
    }
  }
  EXPECT_EQ(zero_.messages().under_way() + one_.messages().under_way(), 0u);
}

TEST_F(MessagesTest, OneTagKeepsItsOrderAndAnotherOvertakes) {
  Sending first(zero_, 1, 1, 200'000, 1);
  Sending second(zero_, 1, 1, 3, 2);
  Sending other(zero_, 1, 9, 100'000, 3);
  Receiving of_other(one_, 0, 9, 100'000);
  network_.deliver_all();
  EXPECT_TRUE(of_other.has(3));
  Receiving of_first(one_, 0, 1, 200'000);
  Receiving of_second(one_, 0, 1, 3);
  network_.deliver_all();
  EXPECT_TRUE(of_first.has(1));
  EXPECT_TRUE(of_second.has(2));
}

TEST_F(MessagesTest, BothDirectionsAtOnceDoNotWaitForEachOther) {
  Sending there(zero_, 1, 0, 900'000, 1);
  Sending back(one_, 0, 0, 900'000, 2);
  Receiving at_one(one_, 0, 0, 900'000);
  Receiving at_zero(zero_, 1, 0, 900'000);
  network_.deliver_all();
  EXPECT_TRUE(at_one.has(1));
  EXPECT_TRUE(at_zero.has(2));
}

TEST_F(MessagesTest, AReceiveFromAnyRankSaysFromWhich) {
  Receiving any(one_, Messages::kAnyRank, 4, 10);
  Sending sending(two_, 1, 4, 10, 6);
  network_.deliver_all();
  EXPECT_TRUE(any.has(6));
  EXPECT_EQ(any.source, 2);
}

TEST_F(MessagesTest, ManySmallOnesThatNobodyReceivesWaitAtTheirSender) {
  std::vector<std::unique_ptr<Sending>> sent;
  for (int i = 0; i < 200; ++i) {
    sent.push_back(std::make_unique<Sending>(zero_, 1, 0, i % 7, i));
  }
  network_.deliver_all();
  for (int i = 0; i < 200; ++i) {
    Receiving receiving(one_, 0, 0, i % 7);
    network_.deliver_all();
    EXPECT_TRUE(receiving.has(i)) << i;
    EXPECT_TRUE(sent[static_cast<std::size_t>(i)]->done);
  }
}

TEST_F(MessagesTest, AnotherSizeFailsAndNothingElse) {
  for (const std::int64_t count : {10, 100'000}) {
    Sending wrong(zero_, 1, 3, count, 1);
    Receiving receiving(one_, 0, 3, count + 1);
    Sending right(zero_, 1, 3, count, 2);
    Receiving after(one_, 0, 3, count);
    network_.deliver_all();
    const std::string text = concat("a message from rank 0 to rank 1 with tag 3 has ", 4 * count,
                                    " bytes, the receiver expects ", 4 * count + 4);
    EXPECT_EQ(receiving.why, text);
    EXPECT_EQ(wrong.why, count == 10 ? "" : text) << "a small one is done when it is on its way";
    EXPECT_TRUE(after.has(2));
  }
}

TEST_F(MessagesTest, ARankThatHasLeftIsStillHeardInWhatItSent) {
  Sending small(zero_, 1, 3, 10, 4);
  Sending large(zero_, 1, 4, 100'000, 5);
  Receiving from_other(one_, 2, 9, 10);
  network_.deliver_all();
  zero_.leave();
  network_.deliver_all();
  Receiving of_small(one_, 0, 3, 10);
  Receiving of_large(one_, 0, 4, 100'000);
  EXPECT_TRUE(of_small.has(4));
  EXPECT_THAT(of_large.why, HasSubstr("rank 0 has ended its group"));
  Sending other(two_, 1, 9, 10, 6);
  network_.deliver_all();
  EXPECT_TRUE(from_other.has(6)) << "the others go on";
}

TEST_F(MessagesTest, ALossEndsWhatIsUnderWayAndWhateverComesAfter) {
  Sending sending(zero_, 1, 3, 100'000, 1);
  Receiving receiving(zero_, 2, 3, 10);
  network_.cut(0);
  EXPECT_THAT(sending.why, HasSubstr("rank 1 is lost"));
  EXPECT_THAT(receiving.why, HasSubstr("rank 1 is lost"));
  Sending later(zero_, 2, 3, 1, 1);
  EXPECT_THAT(later.why, HasSubstr("rank 1 is lost"));
}

TEST_F(MessagesTest, WhatFailedSendsNoLaterMemory) {
  Receiving receiving(one_, 0, 3, 100'000);
  Sending sending(zero_, 1, 3, 100'000, 1);
  network_.deliver(0, 1);  // the announcement
  network_.deliver(0, 0);  // that it is wanted
  ASSERT_GT(network_.waiting(0, 1), 0) << "its parts";
  zero_.messages().fail(std::make_exception_ptr(CommError("aborted")));
  EXPECT_EQ(sending.why, "aborted");
  std::ranges::fill(sending.values, -1);
  network_.deliver_all();
  EXPECT_EQ(std::ranges::count(receiving.values, -1), 0);
}

TEST_F(MessagesTest, AReceiveFromAnyRankFailsWhenAllOthersHaveLeft) {
  Receiving before(one_, Messages::kAnyRank, 4, 10);
  zero_.leave();
  network_.deliver_all();
  EXPECT_EQ(before.source, -2) << "rank 2 is still there";
  two_.leave();
  network_.deliver_all();
  EXPECT_THAT(before.why, HasSubstr("has ended its group"));
  Receiving after(one_, Messages::kAnyRank, 4, 10);
  EXPECT_THAT(after.why, HasSubstr("has ended its group"));
}

}  // namespace
}  // namespace downpour::collective
