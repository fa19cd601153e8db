// A sequence of messages from a hostile worker to one shard, beside a good one. Whatever comes: values change by pushes that
// were applied and by nothing else, numbers only grow, and the good worker's pushes are applied.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "csrc/base/log.h"
#include "tests/ps/cluster.h"

namespace {

using namespace downpour;
using namespace downpour::ps;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

// Takes the input apart; zeros after its end.
class Input {
 public:
  Input(const std::uint8_t* bytes, std::size_t size) : bytes_(std::as_bytes(std::span(bytes, size))) {}
  bool is_empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    const Bytes one = take(1);
    return one.empty() ? 0 : static_cast<std::uint8_t>(one[0]);
  }
  Bytes take(std::size_t most) {
    const Bytes head = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(head.size());
    return head;
  }

 private:
  Bytes bytes_;
};

constexpr std::uint64_t kSlotBytes = 192;  // 80 bytes and 24, each from the next multiple of 64 on

Schema schema() { return {{{"a", {20}, Dtype::kFloat32, 0}, {"b", {3}, Dtype::kFloat64, 1}}, 2, RuleKind::kSgd, 0}; }

class Hostile final : public transport::Receiver {
 public:
  Hostile(Cluster& cluster, std::uint64_t attempt) {
    transport::Hello hello;
    hello.job = Cluster::kJob;
    hello.rank = 1;
    hello.incarnation = 1;
    hello.schema = cluster.agreement.schema.hash();
    Writer body;
    encode(JoinShard{0, 2, attempt}, body);
    hello.body = body.take();
    connection = cluster.network.connect(cluster.address(0), hello, *this);
    cluster.note_link(cluster.newest_link(), 0);
    cluster.deliver_all();
  }
  void on_open(transport::Connection&, const transport::Welcome&) override { open = true; }
  void on_message(transport::Connection&, const transport::Message&) override {}
  void on_closed(transport::Connection&, std::exception_ptr) override { open = false; }

  std::unique_ptr<transport::Connection> connection;
  bool open = false;
};

class Session {
 public:
  Session()
      : cluster_({.schema = schema(), .snapshots = false}),
        good_(cluster_, 0, 1, {.replay_budget_bytes = 1}),
        hostile_(new_hostile()) {
    good_.hypers.assign(2, Hyper{.lr = 0x1p-12});
    good_.initialise();
  }

  void run(Input input) {
    for (int step = 0; step < 300 && !input.is_empty(); ++step) {
      act(input);
      cluster_.deliver_all();
      check_invariants();
      if (!hostile_->open) {
        hostile_ = new_hostile();
      }
    }
    good_.push(1);
    good_.pull();
    check(good_.client.settle().applied == 1);
    check_invariants();
  }

 private:
  std::unique_ptr<Hostile> new_hostile() { return std::make_unique<Hostile>(cluster_, ++attempts_); }

  void act(Input& input) {
    switch (input.byte() % 8) {
      case 0: return push_whole(input);
      case 1: return push_piece(input);
      case 2: return push_last(input);
      case 3: return send(MessageType::kResume, input.take(8), {}, 0);
      case 4: return send(MessageType::kPull, input.take(8), {}, 0);
      case 5: return anything(input);
      case 6: return cluster_.server().fence({1, static_cast<std::uint32_t>(input.byte() % 2)});
      default: hostile_ = new_hostile();
    }
  }

  PushFragment fragment(Input& input) {
    PushFragment fragment;
    fragment.sequence = cluster_.server().shard().next_sequence(1) + static_cast<std::uint64_t>(input.byte() % 4) - 1;
    fragment.slot = input.byte() % 3;
    fragment.header.groups.assign(2, Hyper{.lr = 0x1p-12});
    const std::uint8_t present = input.byte();
    fragment.header.present = {(present & 1) != 0, (present & 2) != 0};
    fragment.header.lease = present >> 4;
    fragment.header.exempt_from_staleness = (present & 4) != 0;
    fragment.header.check.finite = (present & 8) == 0;
    return fragment;
  }
  void push_whole(Input& input) {
    PushFragment whole = fragment(input);
    whole.last = 1;
    std::vector<std::byte> gradient(kSlotBytes);
    const Bytes some = input.take(16);
    std::copy(some.begin(), some.end(), gradient.begin());
    send_fragment(whole, gradient, whole.slot % 2 * kSlotBytes);
  }
  void push_piece(Input& input) {
    const PushFragment piece = fragment(input);
    const std::uint64_t offset = input.byte() * 2u;
    send_fragment(piece, input.take(input.byte()), std::min<std::uint64_t>(offset, kSlotBytes));
  }
  void push_last(Input& input) {
    PushFragment last = fragment(input);
    last.last = 1;
    send_fragment(last, {}, 0);
  }
  void anything(Input& input) {
    const auto type = static_cast<MessageType>(64 + input.byte() % 12);
    const std::uint64_t offset = input.byte();
    const Bytes body = input.take(input.byte());
    const Bytes bulk = input.take(input.byte());
    send(type, body, bulk, offset);
  }
  void send_fragment(const PushFragment& fragment, Bytes bulk, std::uint64_t offset) {
    Writer out;
    encode(fragment, out);
    send(MessageType::kPush, out.bytes(), bulk, offset);
  }
  void send(MessageType type, Bytes body, Bytes bulk, std::uint64_t offset) {
    if (!hostile_->open) {
      return;
    }
    const std::uint64_t window_bytes = hostile_->connection->outgoing_window_bytes();
    offset = std::min(offset, window_bytes);
    bulk = bulk.first(std::min<std::size_t>(bulk.size(), window_bytes - offset));
    kept_.assign(bulk.begin(), bulk.end());
    const bool has_credit = hostile_->connection->credits() > 0;
    hostile_->connection->put(static_cast<std::uint16_t>(type), body, kept_, offset,
                              has_credit ? transport::Credit::kTake : transport::Credit::kNone);
  }

  void check_invariants() {
    const Shard& shard = cluster_.server().shard();
    const std::vector<std::byte> values(shard.values().begin(), shard.values().end());
    check(values == values_ || shard.version() > version_);
    check(shard.version() >= version_);
    check(shard.next_sequence(1) >= next_);
    version_ = shard.version();
    next_ = shard.next_sequence(1);
    values_ = values;
  }

  Cluster cluster_;
  TestWorker good_;
  std::uint64_t attempts_ = 0;
  std::vector<std::byte> kept_;
  std::unique_ptr<Hostile> hostile_;
  std::vector<std::byte> values_ = std::vector<std::byte>(kSlotBytes);
  Version version_;
  std::uint64_t next_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const bool quiet = (set_log_sink([](LogLevel, std::string_view) {}), true);
  (void)quiet;
  Session().run(Input(bytes, size));
  return 0;
}
