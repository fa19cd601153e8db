#include "csrc/transport/ring.h"

#include <algorithm>
#include <atomic>
#include <bit>

// No wake-up is lost. Two words meet twice in the way of Dekker, with all four accesses in the one total order of seq_cst:
//   consumer: sleeps = 1, reads tail, blocks if there is nothing     producer: tail += n, reads sleeps, rings if set
//   producer: waits = 1, reads head, gives up if there is no room    consumer: head += n, reads waits, rings if set
// If the one that is about to block read the index before the other wrote it, then its flag came before that write, and the
// other, which reads the flag after it, sees it and rings. The doorbell keeps the ring until it is heard. A flag is cleared by
// whoever acts on it: by the ringer, so that it rings once, or by its owner, which is then awake and looks for itself.
// Ordering by seq_cst accesses and not by fences: TSan understands only the former.
namespace downpour::transport {
namespace {

using Word = std::atomic_ref<std::uint64_t>;
static_assert(Word::is_always_lock_free, "a lock would not work across processes");

// Two lines each: processors fetch lines in pairs.
constexpr std::size_t kTail = 0;
constexpr std::size_t kHead = 128;
constexpr std::size_t kSleeps = 256;
constexpr std::size_t kWaits = 384;

Word word(MutableBytes control, std::size_t at) { return Word(*reinterpret_cast<std::uint64_t*>(control.data() + at)); }

// Most calls find the flag down and leave its line shared.
bool lower(Word flag) {
  return flag.load(std::memory_order_seq_cst) != 0 && flag.exchange(0, std::memory_order_seq_cst) != 0;
}

void check_shapes(MutableBytes control, MutableBytes ring) {
  DOWNPOUR_CHECK(control.size() == kRingControlBytes && reinterpret_cast<std::uintptr_t>(control.data()) % 8 == 0,
                 "ring: expected ", kRingControlBytes, " aligned bytes of control, found ", control.size());
  DOWNPOUR_CHECK(std::has_single_bit(ring.size()) && ring.size() >= kSmallestRingBytes,
                 "ring: expected a power of two of at least ", kSmallestRingBytes, " bytes, found ", ring.size());
}

// Where stream position `index` lies, and how many of `count` bytes follow it before the ring wraps.
MutableBytes stretch(MutableBytes ring, std::uint64_t index, std::uint64_t count) {
  const std::uint64_t at = index & (ring.size() - 1);
  return ring.subspan(at, std::min(count, ring.size() - at));
}

}  // namespace

RingProducer::RingProducer(MutableBytes control, MutableBytes ring) : control_(control), ring_(ring) {
  check_shapes(control, ring);
}

bool RingProducer::push(const FrameHeader& header, Bytes body) {
  DOWNPOUR_CHECK(body.size() == header.body_bytes && written_ <= kFrameHeaderBytes + body.size(), "ring: a header for ",
                 header.body_bytes, " bytes of body with ", body.size(),
                 " of them, or another frame than the one under way");
  std::byte encoded[kFrameHeaderBytes];
  encode_header(header, encoded);
  if (ring_.size() - (tail_ - head_) < kFrameHeaderBytes + body.size() - written_) {
    read_head();
  }
  if (write(encoded, body)) {
    return true;
  }
  word(control_, kWaits).store(1, std::memory_order_seq_cst);
  read_head();
  const bool done = write(encoded, body);
  if (done) {
    word(control_, kWaits).store(0, std::memory_order_relaxed);
  }
  return done;
}

void RingProducer::read_head() {
  const std::uint64_t head = word(control_, kHead).load(std::memory_order_seq_cst);
  DOWNPOUR_CHECK_AS(ProtocolError, head - head_ <= tail_ - head_, "ring: the consumer's index is ", head,
                    ", expected one from ", head_, " to ", tail_);
  head_ = head;
}

bool RingProducer::write(Bytes header, Bytes body) {
  const std::uint64_t before = tail_;
  if (written_ < header.size()) {
    append(header.subspan(written_));
  }
  if (written_ >= header.size()) {
    append(body.subspan(written_ - header.size()));
  }
  if (tail_ != before) {
    word(control_, kTail).store(tail_, std::memory_order_release);
    published_ = true;
  }
  if (written_ < header.size() + body.size()) {
    return false;
  }
  written_ = 0;
  return true;
}

void RingProducer::append(Bytes bytes) {
  std::uint64_t left = std::min<std::uint64_t>(bytes.size(), ring_.size() - (tail_ - head_));
  while (left > 0) {
    const MutableBytes to = stretch(ring_, tail_, left);
    std::memcpy(to.data(), bytes.data(), to.size());
    bytes = bytes.subspan(to.size());
    tail_ += to.size();
    written_ += to.size();
    left -= to.size();
  }
}

bool RingProducer::consumer_sleeps() {
  if (!published_) {
    return false;
  }
  published_ = false;
  // Again, now in the total order; once for all frames of a batch.
  word(control_, kTail).store(tail_, std::memory_order_seq_cst);
  return lower(word(control_, kSleeps));
}

RingConsumer::RingConsumer(MutableBytes control, MutableBytes ring, const FrameLimits& limits)
    : control_(control),
      ring_(ring),
      limits_(limits),
      frame_(std::make_unique_for_overwrite<std::byte[]>(kFrameHeaderBytes + limits.body_bytes)) {
  check_shapes(control, ring);
}

std::optional<RingConsumer::Item> RingConsumer::pop() {
  const std::uint64_t before = head_;
  auto item = take_frame();
  if (head_ != before) {
    word(control_, kHead).store(head_, std::memory_order_release);
    freed_ = true;
  }
  return item;
}

std::optional<RingConsumer::Item> RingConsumer::take_frame() {
  if (taken_ <= kFrameHeaderBytes) {
    if (!take(kFrameHeaderBytes)) {
      return std::nullopt;
    }
    // What is checked must be the copy: without this the compiler may read the ring twice.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    header_ = decode_header(std::span<const std::byte, kFrameHeaderBytes>(frame_.get(), kFrameHeaderBytes), limits_);
  }
  if (!take(kFrameHeaderBytes + header_.body_bytes)) {
    return std::nullopt;
  }
  taken_ = 0;
  return Item{header_, Bytes(frame_.get() + kFrameHeaderBytes, header_.body_bytes)};
}

bool RingConsumer::take(std::uint64_t until) {
  if (tail_ - head_ < until - taken_) {
    read_tail();
  }
  std::uint64_t left = std::min(until - taken_, tail_ - head_);
  while (left > 0) {
    const Bytes from = stretch(ring_, head_, left);
    std::memcpy(frame_.get() + taken_, from.data(), from.size());
    head_ += from.size();
    taken_ += from.size();
    left -= from.size();
  }
  return taken_ == until;
}

void RingConsumer::read_tail() {
  const std::uint64_t tail = word(control_, kTail).load(std::memory_order_acquire);
  DOWNPOUR_CHECK_AS(ProtocolError, tail - tail_ <= ring_.size() - (tail_ - head_), "ring: the producer's index is ",
                    tail, ", expected one from ", tail_, " to ", head_ + ring_.size());
  tail_ = tail;
}

bool RingConsumer::empty() { return word(control_, kTail).load(std::memory_order_seq_cst) == head_; }
void RingConsumer::sleep() { word(control_, kSleeps).store(1, std::memory_order_seq_cst); }
void RingConsumer::awake() { word(control_, kSleeps).store(0, std::memory_order_relaxed); }

bool RingConsumer::producer_waits() {
  if (!freed_) {
    return false;
  }
  freed_ = false;
  word(control_, kHead).store(head_, std::memory_order_seq_cst);
  return lower(word(control_, kWaits));
}

}  // namespace downpour::transport
