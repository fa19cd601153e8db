#include "csrc/collective/team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <type_traits>
#include <utility>

#include "csrc/base/error.h"

namespace downpour::collective {
namespace {

constexpr std::int64_t kLineBytes = 4096;  // a page each: what one member writes is on nobody else's page
constexpr int kLooksBeforeSleep =
    200;  // a peer on another core mostly comes within these; more costs its core on a full machine
// A sleeper looks up this often: a wake-up may come between its last look at aborted_ and its sleep.
constexpr timespec kLongestSleep{0, 10'000'000};

void look_away() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::uint32_t* word_of(std::atomic<std::uint32_t>& atomic) {
  static_assert(sizeof(atomic) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  return reinterpret_cast<std::uint32_t*>(&atomic);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, word_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Counts wrap around.
bool has_come(std::uint32_t meetings, std::uint32_t wanted) {
  return static_cast<std::int32_t>(meetings - wanted) >= 0;
}

}  // namespace

// Only its member writes it, but for `sleepers`, which the others count up and down.
struct Team::Line {
  alignas(64) std::atomic<std::uint32_t> meetings;
  alignas(64) std::atomic<std::uint32_t> sleepers;
  alignas(64) Announcement announcements[2];
};

std::string to_string(const Attempt& attempt) {
  return concat(to_string(attempt.shape), " (call ", attempt.number, ")");
}

std::uint64_t Team::memory_bytes(int members) {
  return static_cast<std::uint64_t>(members) * static_cast<std::uint64_t>(kLineBytes + kSlots * kSlotBytes);
}

Team::Team(MutableBytes memory, std::vector<int> ranks, int member, const Clock& clock)
    : memory_(memory),
      ranks_(std::move(ranks)),
      member_(member),
      clock_(clock),
      sources_(ranks_.size()),
      targets_(ranks_.size()),
      left_(std::make_unique<std::atomic<bool>[]>(ranks_.size())) {
  static_assert(sizeof(Line) <= kLineBytes && std::is_trivially_copyable_v<Announcement>);
  DOWNPOUR_INTERNAL_ASSERT(memory.size() >= memory_bytes(size()) && member >= 0 && member < size());
}

Team::Line& Team::line(int member) const {
  return *reinterpret_cast<Line*>(memory_.data() + std::int64_t{member} * kLineBytes);
}

MutableBytes Team::slot_of(int member) const {
  const std::int64_t slot = std::int64_t{member} * kSlots + slot_;
  return memory_.subspan(static_cast<std::size_t>(std::int64_t{size()} * kLineBytes + slot * kSlotBytes), kSlotBytes);
}

void Team::announce(const Announcement& announcement) {
  std::memcpy(&line(member_).announcements[(meetings_ + 1) & 1], &announcement, sizeof(announcement));
}

Announcement Team::announced_by(int member) const {
  Announcement result;
  std::memcpy(&result, &line(member).announcements[meetings_ & 1], sizeof(result));
  return result;
}

void Team::meet(const Attempt& attempt) {
  if (is_aborted()) {
    throw_reason();
  }
  ++meetings_;
  Line& own = line(member_);
  own.meetings.store(meetings_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) != 0) {
    wake_all(own.meetings);
  }
  for (int i = 1; i < size(); ++i) {
    wait_for((member_ + i) % size(), attempt);
  }
}

void Team::wait_for(int member, const Attempt& attempt) {
  Line& peer = line(member);
  for (int looks = 0;; ++looks) {
    const std::uint32_t seen = peer.meetings.load(std::memory_order_acquire);
    if (has_come(seen, meetings_)) {
      return;
    }
    if (looks < kLooksBeforeSleep) {
      look_away();
      continue;
    }
    if (left_[static_cast<std::size_t>(member)].load(std::memory_order_acquire)) {
      miss(member, seen, attempt);
    }
    if (is_aborted()) {
      throw_reason();
    }
    if (clock_.now() >= attempt.deadline) {
      give_up_on_missing(attempt);
    }
    sleep_at(peer, seen);
  }
}

// Sequentially consistent on both sides: either we see the member's new count or it sees us asleep.
void Team::sleep_at(Line& peer, std::uint32_t seen) const {
  peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (peer.meetings.load(std::memory_order_seq_cst) == seen) {
    syscall(SYS_futex, word_of(peer.meetings), FUTEX_WAIT, seen, &kLongestSleep, nullptr, 0);
  }
  peer.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

// The last one may have come since we looked.
void Team::give_up_on_missing(const Attempt& attempt) {
  std::string missing;
  int count = 0;
  for (int other = 0; other < size(); ++other) {
    if (!has_come(line(other).meetings.load(std::memory_order_acquire), meetings_)) {
      missing += concat(missing.empty() ? "" : ", ", rank_of(other));
      ++count;
    }
  }
  if (count == 0) {
    return;
  }
  abort(std::make_exception_ptr(
      TimeoutError(concat(to_string(attempt), ": ", count == 1 ? "rank " : "ranks ", missing, " did not come within ",
                          seconds(clock_.now() - attempt.begun), " s"))));
  throw_reason();
}

// It may have come and left since we looked.
void Team::miss(int member, std::uint32_t seen, const Attempt& attempt) {
  if (line(member).meetings.load(std::memory_order_acquire) == seen) {
    abort(std::make_exception_ptr(
        PeerLostError(concat(to_string(attempt), ": rank ", rank_of(member), " has ended its group"))));
    throw_reason();
  }
}

void Team::leave(int member) {
  left_[static_cast<std::size_t>(member)].store(true, std::memory_order_release);
  wake_all(line(member).meetings);
}

void Team::abort(std::exception_ptr why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_ == nullptr) {
      why_ = std::move(why);
    }
  }
  aborted_.store(true, std::memory_order_release);
  for (int other = 0; other < size(); ++other) {
    wake_all(line(other).meetings);
  }
}

void Team::throw_reason() const {
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(why_);
}

}  // namespace downpour::collective
