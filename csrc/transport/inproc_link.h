#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "csrc/transport/handshake.h"

// The wires of inproc.h.
namespace downpour::transport {

constexpr std::size_t kToAcceptor = 0;
constexpr std::size_t kToConnector = 1;

// A message that waits: header and body, and bulk bytes that still lie with the sender.
struct Parcel {
  std::vector<std::byte> small;
  Bytes bulk;
  std::vector<std::byte> kept_bulk;  // a copy, where the sender's memory may change before delivery
  std::uint64_t bytes() const { return small.size() + bulk.size(); }
  bool is_end_of_file() const { return small.empty(); }
};

// One way of a link. Parcels go round, so that a steady stream allocates nothing.
class Lane {
 public:
  Parcel& push();
  Parcel pop();
  void recycle(Parcel parcel);
  void keep_bulk();  // the sender's memory may change, or go
  void clear();
  int waiting() const { return static_cast<int>(parcels_.size() - first_); }

  bool is_held = false;
  std::optional<std::uint64_t> bytes_until_cut;

 private:
  std::vector<Parcel> parcels_;  // waiting from first_ on
  std::size_t first_ = 0;
  std::size_t kept_ = 0;  // of those in front of it no bulk bytes lie with the sender
  std::vector<Parcel> spare_;
};

// Whoever receives what a lane delivers.
class LinkEnd {
 public:
  virtual ~LinkEnd() = default;
  virtual FrameLimits limits() const = 0;
  virtual MutableBytes window() = 0;
  virtual void receive(const FrameHeader& header, Bytes body) = 0;  // may destroy this
  virtual void lose(std::exception_ptr why) = 0;                    // may destroy this
};

struct Link {
  std::string name;
  std::array<Lane, 2> lanes;       // by direction
  std::array<LinkEnd*, 2> ends{};  // by direction: who receives; nullptr when not there yet or closed
  bool has_met_acceptor = false;

  void send(std::size_t direction, FrameType type, Bytes body);
  void leave(std::size_t direction);      // the receiver of `direction` goes; what it sent still waits
  void break_off(std::size_t direction);  // the same without a goodbye: the other end finds it lost after what it sent
};

}  // namespace downpour::transport
