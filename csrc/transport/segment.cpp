#include "csrc/transport/segment.h"

#include <bit>
#include <limits>

#include "csrc/base/error.h"
#include "csrc/transport/ring.h"

namespace downpour::transport {
namespace {

// A constant, not the machine's page size: both ends must compute the same layout. 64 KiB is the largest page of any Linux,
// so the parts start on pages everywhere.
constexpr std::uint64_t kPageBytes = 64 * 1024;
constexpr std::uint64_t kLargestBytes = std::numeric_limits<std::int64_t>::max();  // of a file
static_assert(2 * kRingControlBytes <= 4096);

// Appends a part of `bytes`, rounded up to pages, to a layout that ends at `end`; false when no file is that long.
bool append(std::uint64_t& end, std::uint64_t bytes) {
  if (bytes > kLargestBytes - kPageBytes) {
    return false;
  }
  const std::uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (rounded > kLargestBytes - end) {
    return false;
  }
  end += rounded;
  return true;
}

std::string describe(const Segment::Sizes& sizes) {
  return concat("two rings of ", sizes.ring_bytes, " bytes and windows of ", sizes.to_acceptor_window_bytes, " and ",
                sizes.to_connector_window_bytes, " bytes");
}

}  // namespace

std::optional<Segment::Layout> Segment::lay_out(const Sizes& sizes) {
  if (!std::has_single_bit(sizes.ring_bytes) || sizes.ring_bytes < kSmallestRingBytes) {
    return std::nullopt;
  }
  Layout layout;
  std::uint64_t end = kPageBytes;
  bool fits = append(end, sizes.ring_bytes);
  layout.ring_to_connector = end;
  fits = fits && append(end, sizes.ring_bytes);
  layout.window_to_acceptor = end;
  fits = fits && append(end, sizes.to_acceptor_window_bytes);
  layout.window_to_connector = end;
  fits = fits && append(end, sizes.to_connector_window_bytes);
  layout.total = end;
  return fits ? std::optional(layout) : std::nullopt;
}

std::shared_ptr<Segment> Segment::create(const Sizes& sizes) {
  const auto layout = lay_out(sizes);
  DOWNPOUR_CHECK(layout, describe(sizes), " make no segment: a ring is a power of two of at least ", kSmallestRingBytes,
                 " bytes, and all of it at most ", kLargestBytes, " bytes");
  return std::shared_ptr<Segment>(new Segment(SealedMemory::create(layout->total), sizes, *layout));
}

std::shared_ptr<Segment> Segment::map(Fd memory, const Sizes& expected) {
  const auto layout = lay_out(expected);
  DOWNPOUR_CHECK_AS(ProtocolError, layout, "the peer speaks of ", describe(expected), ", which make no segment");
  return std::shared_ptr<Segment>(new Segment(SealedMemory::map(std::move(memory), layout->total), expected, *layout));
}

Segment::Segment(SealedMemory memory, const Sizes& sizes, const Layout& layout)
    : memory_(std::move(memory)), sizes_(sizes), layout_(layout) {}

int Segment::fd() const { return memory_.fd(); }
const Segment::Sizes& Segment::sizes() const { return sizes_; }

MutableBytes Segment::control_to_acceptor() { return memory_.bytes().first(kRingControlBytes); }
MutableBytes Segment::control_to_connector() { return memory_.bytes().subspan(2048, kRingControlBytes); }
MutableBytes Segment::ring_to_acceptor() { return memory_.bytes().subspan(kPageBytes, sizes_.ring_bytes); }
MutableBytes Segment::ring_to_connector() {
  return memory_.bytes().subspan(layout_.ring_to_connector, sizes_.ring_bytes);
}

MutableBytes Segment::window_to_acceptor() {
  return memory_.bytes().subspan(layout_.window_to_acceptor, sizes_.to_acceptor_window_bytes);
}

MutableBytes Segment::window_to_connector() {
  return memory_.bytes().subspan(layout_.window_to_connector, sizes_.to_connector_window_bytes);
}

}  // namespace downpour::transport
