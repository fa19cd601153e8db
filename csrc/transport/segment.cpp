#include "csrc/transport/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <limits>

#include "csrc/base/system_call.h"
#include "csrc/transport/ring.h"

namespace downpour::transport {
namespace {

// A constant, not the machine's page size: both ends must compute the same layout. 64 KiB is the largest page of any Linux,
// so the parts start on pages everywhere.
constexpr std::uint64_t kPageBytes = 64 * 1024;
constexpr std::uint64_t kLargestBytes = std::numeric_limits<std::int64_t>::max();  // of a file
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
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

// A file that is not in memory could fail a page access with SIGBUS although it is sealed (huge pages that ran out).
bool lies_in_memory(int fd) {
  struct statfs system {};
  return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

void check_foreign_memory(int fd, std::uint64_t expected_bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  DOWNPOUR_CHECK_AS(ProtocolError, seals >= 0 && lies_in_memory(fd),
                    "the descriptor offered as shared memory is no memfd");
  DOWNPOUR_CHECK_AS(ProtocolError, (seals & kSizeSeals) == kSizeSeals, "shared memory: expected seals ", kSizeSeals,
                    " (shrink and grow), found ", seals);
  struct stat status {};
  DOWNPOUR_CHECK_AS(ProtocolError, fstat(fd, &status) == 0, "shared memory: no size: ", system_reason());
  DOWNPOUR_CHECK_AS(ProtocolError, static_cast<std::uint64_t>(status.st_size) == expected_bytes,
                    "shared memory: expected ", expected_bytes, " bytes, found ", status.st_size);
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
  Fd memory(memfd_create("downpour", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  DOWNPOUR_CHECK_AS(CommError, memory, "memfd_create for ", layout->total, " bytes: ", system_reason());
  DOWNPOUR_CHECK_AS(CommError, ftruncate(memory.get(), static_cast<off_t>(layout->total)) == 0, "shared memory of ",
                    layout->total, " bytes: ", system_reason());
  DOWNPOUR_CHECK_AS(CommError, fcntl(memory.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0,
                    "sealing shared memory of ", layout->total, " bytes: ", system_reason());
  return std::shared_ptr<Segment>(new Segment(std::move(memory), sizes, *layout));
}

std::shared_ptr<Segment> Segment::map(Fd memory, const Sizes& expected) {
  const auto layout = lay_out(expected);
  DOWNPOUR_CHECK_AS(ProtocolError, layout, "the peer speaks of ", describe(expected), ", which make no segment");
  check_foreign_memory(memory.get(), layout->total);
  return std::shared_ptr<Segment>(new Segment(std::move(memory), expected, *layout));
}

Segment::Segment(Fd memory, const Sizes& sizes, const Layout& layout)
    : memory_(std::move(memory)), sizes_(sizes), layout_(layout) {
  void* base = mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  DOWNPOUR_CHECK_AS(CommError, base != MAP_FAILED, "mapping ", layout.total,
                    " bytes of shared memory: ", system_reason());
  mapping_ = {static_cast<std::byte*>(base), layout.total};
}

Segment::~Segment() { munmap(mapping_.data(), mapping_.size()); }

int Segment::fd() const { return memory_.get(); }
const Segment::Sizes& Segment::sizes() const { return sizes_; }

MutableBytes Segment::control_to_acceptor() { return mapping_.first(kRingControlBytes); }
MutableBytes Segment::control_to_connector() { return mapping_.subspan(2048, kRingControlBytes); }
MutableBytes Segment::ring_to_acceptor() { return mapping_.subspan(kPageBytes, sizes_.ring_bytes); }
MutableBytes Segment::ring_to_connector() { return mapping_.subspan(layout_.ring_to_connector, sizes_.ring_bytes); }

MutableBytes Segment::window_to_acceptor() {
  return mapping_.subspan(layout_.window_to_acceptor, sizes_.to_acceptor_window_bytes);
}

MutableBytes Segment::window_to_connector() {
  return mapping_.subspan(layout_.window_to_connector, sizes_.to_connector_window_bytes);
}

}  // namespace downpour::transport
