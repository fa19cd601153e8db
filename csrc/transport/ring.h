#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "csrc/base/bytes.h"
#include "csrc/transport/frame.h"

namespace downpour::transport {

// What one ring keeps outside its bytes: tail (producer's), head (consumer's), "consumer sleeps", "producer waits", each on
// cache lines of its own. All zero at first.
constexpr std::size_t kRingControlBytes = 512;
constexpr std::uint32_t kSmallestRingBytes = 64;

// One-way queue of control frames (header and body; bulk bytes lie in the window) in shared memory: one producer process, one
// consumer process. Neither trusts the other: indices are bounds-checked, headers and bodies are copied out before they are
// looked at, so a peer that scribbles can end the connection but nothing else.
// The ring is a stream of bytes, so a frame may be longer than the ring: it goes through in pieces.
// Shapes: control of kRingControlBytes, aligned to 8; ring a power of two of at least kSmallestRingBytes.
// Threads: the producer's functions from one thread, the consumer's from one thread.
// Errors: after a ProtocolError neither end may be used again.
class RingProducer {
 public:
  RingProducer(MutableBytes control, MutableBytes ring);
  // false when there is no room for all of it now: push the same frame again when the consumer rings, which it does as soon
  // as it has made room. Errors: ProtocolError when the consumer's index is impossible.
  bool push(const FrameHeader& header, Bytes body);
  bool consumer_sleeps();  // after push, also a false one: true means ring its doorbell, once

 private:
  void read_head();
  bool write(Bytes header, Bytes body);
  void append(Bytes bytes);

  MutableBytes control_;
  MutableBytes ring_;
  std::uint64_t tail_ = 0;     // ours; what lies in shared memory is only ever written
  std::uint64_t head_ = 0;     // the consumer's, as last seen
  std::uint64_t written_ = 0;  // of the frame that is under way
  bool published_ = false;     // since consumer_sleeps() was asked last
};

class RingConsumer {
 public:
  RingConsumer(MutableBytes control, MutableBytes ring, const FrameLimits& limits);
  struct Item {
    FrameHeader header;
    Bytes body;  // a private copy, valid until the next pop
  };
  // nullopt when empty. Errors: ProtocolError for impossible indices, lengths or headers.
  std::optional<Item> pop();
  bool empty();
  void sleep();  // the producer must ring from now on; check empty() once more afterwards
  void awake();
  bool producer_waits();  // the producer found no room: ring its doorbell after pop, also one that gave nothing

 private:
  void read_tail();
  bool take(std::uint64_t until);
  std::optional<Item> take_frame();

  MutableBytes control_;
  MutableBytes ring_;
  FrameLimits limits_;
  std::unique_ptr<std::byte[]> frame_;  // header and body of the frame that arrives
  FrameHeader header_;
  std::uint64_t taken_ = 0;  // bytes in frame_
  std::uint64_t head_ = 0;   // ours
  std::uint64_t tail_ = 0;   // the producer's, as last seen
  bool freed_ = false;       // since producer_waits() was asked last
};

}  // namespace downpour::transport
