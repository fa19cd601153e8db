#include "csrc/transport/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "csrc/base/error.h"
#include "csrc/base/system_call.h"

namespace downpour::transport {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t kSmallestPageBytes = 4096;

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

// A write of nothing to every page makes the kernel copy it; atomic, since another thread may be writing there.
void copy_page_by_page(MutableBytes memory) {
  for (std::size_t at = 0; at < memory.size(); at += kSmallestPageBytes) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(memory.data() + at), 0, __ATOMIC_RELAXED);
  }
}

}  // namespace

SealedMemory SealedMemory::create(std::uint64_t bytes) {
  Fd memory(memfd_create("downpour", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  DOWNPOUR_CHECK_AS(CommError, memory, "memfd_create for ", bytes, " bytes: ", system_reason());
  DOWNPOUR_CHECK_AS(CommError, ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0, "shared memory of ", bytes,
                    " bytes: ", system_reason());
  DOWNPOUR_CHECK_AS(CommError, fcntl(memory.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0,
                    "sealing shared memory of ", bytes, " bytes: ", system_reason());
  return SealedMemory(std::move(memory), bytes);
}

SealedMemory SealedMemory::map(Fd memory, std::uint64_t expected_bytes) {
  check_foreign_memory(memory.get(), expected_bytes);
  return SealedMemory(std::move(memory), expected_bytes);
}

SealedMemory::SealedMemory(Fd memory, std::uint64_t bytes) : memory_(std::move(memory)) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  DOWNPOUR_CHECK_AS(CommError, base != MAP_FAILED, "mapping ", bytes, " bytes of shared memory: ", system_reason());
  mapping_ = {static_cast<std::byte*>(base), bytes};
}

SealedMemory& SealedMemory::operator=(SealedMemory&& other) noexcept {
  if (this != &other) {
    unmap();
    memory_ = std::move(other.memory_);
    mapping_ = std::exchange(other.mapping_, {});
  }
  return *this;
}

void SealedMemory::unmap() {
  if (!mapping_.empty()) {
    munmap(mapping_.data(), mapping_.size());
  }
}

// One call replaces the mapping at its place, so that no write of another thread falls between a copy and the switch.
void SealedMemory::keep_privately() {
  void* const base =
      mmap(mapping_.data(), mapping_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, memory_.get(), 0);
  DOWNPOUR_CHECK_AS(CommError, base != MAP_FAILED, "keeping ", mapping_.size(),
                    " bytes of shared memory privately: ", system_reason());
  copy_page_by_page(mapping_);
}

}  // namespace downpour::transport
