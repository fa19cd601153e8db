#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/collective/group_state.h"
#include "csrc/collective/hand_over.h"

namespace downpour::collective {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr Duration kLongestLook = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<std::byte> Group::State::allocate(std::int64_t bytes, Duration timeout) {
  check_usable();
  DOWNPOUR_CHECK(bytes > 0, "allocate: expected more than 0 bytes, found ", bytes);
  std::shared_ptr<std::byte> memory;
  in_turn([&] {
    guarded([&] { memory = machines->count() == 1 && team ? share_arena(bytes, timeout) : own_memory(bytes); });
  });
  return memory;
}

std::shared_ptr<std::byte> Group::State::own_memory(std::int64_t bytes) {
  constexpr std::align_val_t kAlignment{kPageBytes};
  auto* const memory = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAlignment));
  return {memory, [](std::byte* it) { ::operator delete(it, kAlignment); }};
}

std::shared_ptr<std::byte> Group::State::share_arena(std::int64_t bytes, Duration timeout) {
  const Attempt meeting = attempt({Op::kAllGather, ElementType::kInt64, ReduceOp::kSum, 0, 1}, timeout);
  compare_sizes(bytes, meeting);
  const std::uint64_t part = (static_cast<std::uint64_t>(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto count = static_cast<std::uint64_t>(team->size());
  auto memory = std::make_shared<transport::SealedMemory>(
      share_memory(concat("arena/", arenas.size()), part * count, meeting.deadline));
  Arena arena{static_cast<std::int32_t>(arenas.size()), {}};
  for (std::uint64_t member = 0; member < count; ++member) {
    arena.parts.push_back(memory->bytes().subspan(member * part, part));
  }
  std::byte* const mine = arena.parts[static_cast<std::size_t>(team->member())].data();
  arenas.push_back(std::move(arena));
  arena_memory.push_back(memory);
  return {std::move(memory), mine};
}

// All meet here first: who is late, or in another call, is named.
void Group::State::compare_sizes(std::int64_t bytes, const Attempt& attempt) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(team->size()));
  Call call{attempt.shape, {std::as_bytes(std::span(&bytes, 1))}, {}};
  for (std::int64_t& size : sizes) {
    call.outputs.push_back(std::as_writable_bytes(std::span(&size, 1)));
  }
  run_call(*team, {}, call, attempt);
  for (int member = 0; member < team->size(); ++member) {
    const std::int64_t theirs = sizes[static_cast<std::size_t>(member)];
    DOWNPOUR_CHECK(theirs == sizes.front(), "allocate: expected the same size on every rank, found ", sizes.front(),
                   " bytes on rank ", team->rank_of(0), " and ", theirs, " bytes on rank ", team->rank_of(member));
  }
}

// The machine's first rank makes the memory and hands it to the others.
transport::SealedMemory Group::State::share_memory(const std::string& key, std::uint64_t bytes, TimePoint deadline) {
  const int leader = machines->leader(my_machine());
  const std::string place = concat(key, "/", leader);
  if (options.rank != leader) {
    return transport::SealedMemory::map(take(place, deadline), bytes);
  }
  transport::SealedMemory memory = transport::SealedMemory::create(bytes);
  MemoryOffer offer;
  bulletin.put(place, as_bytes(offer.ticket()));
  offer.hand_over(memory.fd(), static_cast<int>(machines->ranks(my_machine()).size()) - 1, deadline,
                  [this] { check_unbroken(); });
  return memory;
}

// Why the one who offered it is gone is what its link says, perhaps a moment later.
Fd Group::State::take(const std::string& place, TimePoint deadline) {
  const std::vector<std::byte> ticket = read(place, deadline);
  const std::string text(reinterpret_cast<const char*>(ticket.data()), ticket.size());
  try {
    return take_memory(text, deadline, [this] { check_unbroken(); });
  } catch (const CommError&) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kLongestLook, [this] { return why_broken != nullptr; });
    lock.unlock();
    check_unbroken();
    throw;
  }
}

// From the bulletin. A rank that is lost meanwhile will put nothing there.
std::vector<std::byte> Group::State::read(const std::string& key, TimePoint deadline) {
  for (;;) {
    const TimePoint look_up = std::min(deadline, clock.now() + kLongestLook);
    try {
      return bulletin.get(key, look_up);
    } catch (const TimeoutError&) {
      check_unbroken();
      if (look_up == deadline) {
        throw;
      }
    }
  }
}

// Tensors in arenas stay where they are, and nobody else writes them any more. By whoever has the turn.
void Group::State::keep_memory() {
  if (std::exchange(memory_kept, true)) {
    return;
  }
  for (const auto& memory : arena_memory) {
    try {
      memory->keep_privately();
    } catch (const CommError& error) {
      log_error("rank ", options.rank, ": ", error.what());
    }
  }
}

}  // namespace downpour::collective
