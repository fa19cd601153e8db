#include "csrc/ps/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "csrc/base/random.h"
#include "csrc/ps/protocol_member.h"

namespace downpour::ps {
namespace {

template <typename T>
std::vector<std::byte> bytes_of(const T& message) {
  Writer out;
  encode(message, out);
  return out.take();
}

// What is decoded encodes to the same bytes again; no shorter and no longer body is accepted.
template <typename T>
void check_round_trip(const T& message) {
  const std::vector<std::byte> bytes = bytes_of(message);
  EXPECT_EQ(bytes_of(decode<T>(bytes)), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode<T>(Bytes(bytes).first(size)), ProtocolError) << size << " of " << bytes.size();
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode<T>(longer), ProtocolError);
}

PushFragment last_fragment() {
  PushFragment fragment;
  fragment.sequence = 77;
  fragment.slot = 3;
  fragment.last = 1;
  fragment.header.base = {2, 1000};
  fragment.header.lease = 9;
  fragment.header.groups = {{.lr = 0.25, .weight_decay = 0.5}, {.momentum = 0.9, .eps = 1, .nesterov = 1}};
  fragment.header.present = {true, false, true, true, false, false, false, true, true, true};
  fragment.header.replayed = Verdict::kStale;
  fragment.header.exempt_from_staleness = true;
  fragment.header.check = {false, 12.5};
  return fragment;
}

TEST(Protocol, MessagesBetweenWorkerAndShardRoundTrip) {
  check_round_trip(JoinShard{4, 64, 1ull << 60});
  check_round_trip(ShardWelcome{4, 1 << 20, 1});
  check_round_trip(ShardState{{3, 12}, 8, 1});
  check_round_trip(Resume{5});
  check_round_trip(Initialise{0, {}});
  check_round_trip(Initialise{1, {0.5, 1e-10}});
  check_round_trip(Pull{8});
  check_round_trip(Ack{6, {Verdict::kDuplicate, true, {1, 2}, 3}});
  check_round_trip(Values{8, {1, 2}, 1});
  check_round_trip(Durable{99});
}

TEST(Protocol, MessagesOfMembersRoundTrip) {
  Agreement agreement;
  agreement.schema = {{{"a.weight", {2, 3}, Dtype::kFloat32, 0}, {"b", {}, Dtype::kFloat64, 1}}, 2, RuleKind::kAdam, 1};
  agreement.max_staleness = 5;
  agreement.samples = 60000;
  check_round_trip(agreement);
  EXPECT_EQ(decode<Agreement>(bytes_of(agreement)), agreement);
  check_round_trip(JoinJob{1234});
  check_round_trip(Joined{2, 3, 4, {"127.0.0.1:1", "[::1]:65535"}});
  check_round_trip(Progress{1, 2, 0.5, 1.5, 3, 4, 5});
  check_round_trip(Tick{-1});
  check_round_trip(MinimumClock{10, 1, 2, 30});
  EXPECT_EQ(decode<MinimumClock>(bytes_of(MinimumClock{10, 1, 2, 30})).server, 2);
  check_round_trip(ServerReady{77, {}});
  ServerReady ready{77, LeaseTable({1, 5})};
  ready.leases.record(1ull << 60);
  check_round_trip(ready);
  EXPECT_EQ(decode<ServerReady>(bytes_of(ready)).leases, ready.leases);
  ServerStatus status;
  status.counters.applied = 1;
  status.counters.staleness[15] = 2;
  status.snapshot_error = "disk full";
  status.shards = 3;
  status.last = 1;
  check_round_trip(status);
  check_round_trip(JobCounters{9, status.counters});
  check_round_trip(AskLeases{3});
  check_round_trip(LeasesDone{{1, 2, 3}});
  check_round_trip(Lease{1, 2, 3, 4});
  check_round_trip(Leases{{{1, 0, 0, 64}, {2, 0, 64, 128}}, 1});
  check_round_trip(Reason{"because"});
  const auto cut = bytes_of(Reason{std::string(5000, 'x')});
  EXPECT_EQ(decode<Reason>(cut).text, std::string(Reason::kMostBytes, 'x'));
  EXPECT_LE(cut.size(), largest_body_bytes({}, {}));
  check_round_trip(Fence{1, 2});
}

TEST(Protocol, PushFragmentsRoundTrip) {
  PushFragment into;
  for (const std::uint8_t last : {1, 0, 1}) {
    PushFragment fragment = last_fragment();
    fragment.last = last;
    const auto bytes = bytes_of(fragment);
    decode_into(bytes, into);
    EXPECT_EQ(bytes_of(into), bytes);
    EXPECT_EQ(into.header.sequence, 77u);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(decode_into(Bytes(bytes).first(size), into), ProtocolError) << size;
    }
  }
  EXPECT_EQ(into.header.present, last_fragment().header.present);
  EXPECT_EQ(into.header.groups, last_fragment().header.groups);
  EXPECT_EQ(into.header.replayed, Verdict::kStale);
  EXPECT_FALSE(into.header.check.finite);
  EXPECT_EQ(into.header.check.squared_norm, 12.5);
}

TEST(Protocol, NumbersThatAreNoneAreRefused) {
  PushFragment into;
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    PushFragment fragment = last_fragment();
    fragment.header.groups[1].lr = bad;
    EXPECT_THROW(decode_into(bytes_of(fragment), into), ProtocolError);
  }
  PushFragment fragment = last_fragment();
  fragment.header.check = {true, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(decode_into(bytes_of(fragment), into), ProtocolError);
  fragment.header.check.finite = false;
  decode_into(bytes_of(fragment), into);
}

TEST(Protocol, CountsAreCheckedBeforeMemoryIsTaken) {
  Writer out;
  out.put(std::uint8_t{1}).put(std::numeric_limits<std::uint32_t>::max());
  EXPECT_THROW(decode<Initialise>(out.bytes()), ProtocolError);
  Writer leases;
  leases.put(std::uint32_t{1'000'000'000}).put(std::uint8_t{0});
  EXPECT_THROW(decode<Leases>(leases.bytes()), ProtocolError);
  Writer ready;
  ready.put(std::uint64_t{7}).put(std::uint32_t{1'000'000'000}).put(std::uint64_t{1}).put(std::uint64_t{2});
  EXPECT_THROW(decode<ServerReady>(ready.bytes()), ProtocolError);
}

TEST(Protocol, FlagsVerdictsAndStrayBitsAreChecked) {
  std::vector<std::byte> values = bytes_of(Values{8, {1, 2}, 1});
  values.back() = std::byte{2};
  EXPECT_THROW(decode<Values>(values), ProtocolError);
  for (const int verdict : {0, 5, 255}) {
    std::vector<std::byte> ack = bytes_of(Ack{});
    ack[8] = static_cast<std::byte>(verdict);
    EXPECT_THROW(decode<Ack>(ack), ProtocolError);
  }
  PushFragment into;
  std::vector<std::byte> fragment = bytes_of(last_fragment());
  fragment[fragment.size() - 12] |= std::byte{0x80};  // ten bits in two bytes
  EXPECT_THROW(decode_into(fragment, into), ProtocolError);
}

TEST(Protocol, RandomBytesNeverDoHarm) {
  Random random(3);
  PushFragment into;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = bytes_of(last_fragment());
    bytes.resize(random.below(bytes.size() + 1));
    for (int change = 0; change < 3 && !bytes.empty(); ++change) {
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    }
    try {
      decode_into(bytes, into);
    } catch (const ProtocolError&) {
    }
  }
}

TEST(Protocol, TheLongestBodyHoldsAPushOfAllGroupsAndSlices) {
  Schema schema;
  schema.groups = 7;
  ShardLayout layout;
  layout.slices.resize(1001);
  PushFragment fragment = last_fragment();
  fragment.header.groups.resize(7);
  fragment.header.present.resize(1001);
  EXPECT_LE(bytes_of(fragment).size(), largest_body_bytes(schema, layout));
  EXPECT_LE(bytes_of(Initialise{1, std::vector<double>(7)}).size(), largest_body_bytes(schema, layout));
}

}  // namespace
}  // namespace downpour::ps
