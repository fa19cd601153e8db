#include "csrc/collective/team_call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "csrc/base/error.h"
#include "csrc/collective/reduce.h"

namespace downpour::collective {
namespace {

constexpr std::int64_t kCacheLineBytes = 64;
// Up to here everyone reduces everything, which takes one meeting a slot; with more members or bytes everyone reduces its share and
// fetches the others', which takes two but reads less.
constexpr int kMostMembersReducingAll = 2;
constexpr std::int64_t kMostBytesReducingAll = 64 * 1024;

void move_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

std::byte* at(MutableBytes memory, std::int64_t offset) { return memory.data() + offset; }
const std::byte* at(Bytes memory, std::int64_t offset) { return memory.data() + offset; }

std::int64_t length(Bytes memory) { return static_cast<std::int64_t>(memory.size()); }

struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

// Part `index` of `parts` of some bytes: whole cache lines, so whole elements, and no two members write one line.
Range part_of(std::int64_t bytes, int index, int parts) {
  const std::int64_t lines = (bytes + kCacheLineBytes - 1) / kCacheLineBytes;
  const std::int64_t begin = std::min(bytes, lines * index / parts * kCacheLineBytes);
  const std::int64_t end = std::min(bytes, lines * (index + 1) / parts * kCacheLineBytes);
  return {begin, end - begin};
}

bool is_within(MutableBytes memory, Bytes part) {
  return !memory.empty() && part.data() >= memory.data() && part.data() + part.size() <= memory.data() + memory.size();
}

class TeamCall {
 public:
  TeamCall(Team& team, const std::vector<Arena>& arenas, const Call& call, const Attempt& attempt)
      : team_(team), arenas_(arenas), call_(call), attempt_(attempt) {}

  void run() {
    announce();
    switch (call_.shape.op) {
      case Op::kBarrier: meet(); break;
      case Op::kBroadcast: broadcast(); break;
      case Op::kAllReduce: all_reduce(); break;
      case Op::kReduce: reduce_to_root(); break;
      case Op::kAllGather:
      case Op::kGather: gather(); break;
      case Op::kScatter: scatter(); break;
      case Op::kReduceScatter: reduce_scatter(); break;
      case Op::kAllToAll: all_to_all(); break;
    }
  }

 private:
  bool is_root() const { return team_.member() == call_.shape.root; }
  Bytes input() const { return call_.inputs.front(); }
  MutableBytes output() const { return call_.outputs.front(); }
  std::size_t own() const { return static_cast<std::size_t>(team_.member()); }
  std::int64_t element_bytes() const { return size_bytes(call_.shape.type); }
  std::int64_t bytes() const { return call_.shape.count * element_bytes(); }
  Reduction reduction() const {
    return {call_.shape.type, call_.shape.reduce, call_.shape.reduce == ReduceOp::kAverage ? team_.size() : 1};
  }

  // ---- meetings ------------------------------------------------------------------------------------------------------
  void announce() {
    mine_.number = attempt_.number;
    mine_.shape = attempt_.shape;
    for (const Arena& arena : arenas_) {
      const MutableBytes part = arena.parts[own()];
      if (call_.shape.op == Op::kAllReduce && is_within(part, output())) {
        mine_.arena = arena.id;
        mine_.arena_offset_bytes = output().data() - part.data();
      }
    }
    for (const Bytes piece : call_.inputs) {
      mine_.largest_piece_bytes = std::max(mine_.largest_piece_bytes, length(piece));
    }
    team_.announce(mine_);
  }

  void meet() {
    team_.meet(attempt_);
    if (!opened_) {
      opened_ = true;
      compare();
    }
  }

  void compare() {
    bool agree = true;
    longest_ = mine_.largest_piece_bytes;
    all_in_place_ = mine_.arena >= 0;
    for (int other = 0; other < team_.size(); ++other) {
      const Announcement theirs = team_.announced_by(other);
      agree = agree && theirs.number == mine_.number && theirs.shape == mine_.shape;
      longest_ = std::max(longest_, theirs.largest_piece_bytes);
      all_in_place_ =
          all_in_place_ && theirs.arena == mine_.arena && theirs.arena_offset_bytes == mine_.arena_offset_bytes;
    }
    if (!agree) {
      throw Error(disagreement());
    }
  }

  std::string disagreement() const {
    std::string text = "the ranks of the group call different things:";
    for (int other = 0; other < team_.size(); ++other) {
      const Announcement theirs = team_.announced_by(other);
      text += concat(other == 0 ? " " : "; ", "rank ", team_.rank_of(other), " ", to_string(theirs.shape), " (call ",
                     theirs.number, ")");
    }
    return text + "; expected the same calls in the same order, of one size, type and operation, on every rank";
  }

  // Goes over pieces of at most `longest()` bytes, `step` at a time: everyone fills its slot, all meet, everyone reads.
  template <class Longest, class Fill, class Drain>
  void rounds(const Longest& longest, std::int64_t step, const Fill& fill, const Drain& drain) {
    for (std::int64_t begin = 0; begin == 0 || begin < longest(); begin += step) {
      fill(begin);
      meet();
      drain(begin);
      team_.next_slot();
    }
  }

  static std::int64_t rest(Bytes piece, std::int64_t begin, std::int64_t step) {
    return std::clamp<std::int64_t>(length(piece) - begin, 0, step);
  }

  // ---- one piece a slot ------------------------------------------------------------------------------------------------
  void broadcast() {
    const auto all = [&] { return bytes(); };
    rounds(
        all, Team::kSlotBytes,
        [&](std::int64_t begin) {
          if (is_root()) {
            move_bytes(team_.slot().data(), at(output(), begin), rest(output(), begin, Team::kSlotBytes));
          }
        },
        [&](std::int64_t begin) {
          if (!is_root()) {
            move_bytes(at(output(), begin), team_.slot_of(call_.shape.root).data(),
                       rest(output(), begin, Team::kSlotBytes));
          }
        });
  }

  // All-gather, too: everyone has outputs there.
  void gather() {
    const auto all = [&] { return bytes(); };
    rounds(
        all, Team::kSlotBytes,
        [&](std::int64_t begin) {
          move_bytes(team_.slot().data(), at(input(), begin), rest(input(), begin, Team::kSlotBytes));
        },
        [&](std::int64_t begin) {
          const std::int64_t size = rest(input(), begin, Team::kSlotBytes);
          for (std::size_t other = 0; other < call_.outputs.size(); ++other) {
            const void* from = other == own() ? at(input(), begin) : team_.slot_of(static_cast<int>(other)).data();
            move_bytes(at(call_.outputs[other], begin), from, size);
          }
        });
  }

  // ---- a slot holds a part for each member -------------------------------------------------------------------------------
  std::int64_t share_bytes() const { return Team::kSlotBytes / team_.size() / kCacheLineBytes * kCacheLineBytes; }
  std::byte* share_of(int from, int to) const { return at(team_.slot_of(from), to * share_bytes()); }

  void fill_shares(std::int64_t begin) {
    for (int other = 0; other < static_cast<int>(call_.inputs.size()); ++other) {
      if (other != team_.member()) {
        const Bytes piece = call_.inputs[static_cast<std::size_t>(other)];
        move_bytes(share_of(team_.member(), other), at(piece, begin), rest(piece, begin, share_bytes()));
      }
    }
  }

  void scatter() {
    const auto all = [&] { return bytes(); };
    rounds(
        all, share_bytes(), [&](std::int64_t begin) { fill_shares(begin); },
        [&](std::int64_t begin) {
          const void* from = is_root() ? at(call_.inputs[own()], begin) : share_of(call_.shape.root, team_.member());
          move_bytes(at(output(), begin), from, rest(output(), begin, share_bytes()));
        });
  }

  void all_to_all() {
    const auto all = [&] { return longest_; };
    rounds(
        all, share_bytes(), [&](std::int64_t begin) { fill_shares(begin); },
        [&](std::int64_t begin) {
          for (int other = 0; other < team_.size(); ++other) {
            const MutableBytes piece = call_.outputs[static_cast<std::size_t>(other)];
            const void* from =
                other == team_.member() ? at(call_.inputs[own()], begin) : share_of(other, team_.member());
            move_bytes(at(piece, begin), from, rest(piece, begin, share_bytes()));
          }
        });
  }

  void reduce_scatter() {
    const auto all = [&] { return bytes(); };
    rounds(
        all, share_bytes(), [&](std::int64_t begin) { fill_shares(begin); },
        [&](std::int64_t begin) {
          auto& sources = team_.sources();
          for (int other = 0; other < team_.size(); ++other) {
            sources[static_cast<std::size_t>(other)] = share_of(other, team_.member());
          }
          sources[own()] = at(call_.inputs[own()], begin);
          reduce(reduction(), at(output(), begin), sources, rest(output(), begin, share_bytes()) / element_bytes());
        });
  }

  // ---- reductions of everything ------------------------------------------------------------------------------------------
  bool is_small() const { return team_.size() <= kMostMembersReducingAll || bytes() <= kMostBytesReducingAll; }

  void all_reduce() {
    // Whether arenas exist is the same on every member; whether the tensors lie in one is known after a meeting.
    if (!arenas_.empty() && bytes() > kMostBytesReducingAll) {
      meet();
    }
    if (opened_ && all_in_place_) {
      reduce_in_place();
    } else if (is_small()) {
      reduce_everywhere();
    } else {
      reduce_shares([](int) { return true; });
    }
  }

  void reduce_to_root() {
    if (is_small()) {
      reduce_everywhere();
    } else {
      reduce_shares([&](int member) { return member == call_.shape.root; });
    }
  }

  bool gets_result() const { return call_.shape.op == Op::kAllReduce || is_root(); }

  // Whoever gets the result reduces all of it: one meeting a slot.
  void reduce_everywhere() {
    const auto all = [&] { return bytes(); };
    rounds(
        all, Team::kSlotBytes,
        [&](std::int64_t begin) {
          move_bytes(team_.slot().data(), at(output(), begin), rest(output(), begin, Team::kSlotBytes));
        },
        [&](std::int64_t begin) {
          const Range range{0, rest(output(), begin, Team::kSlotBytes)};
          if (gets_result()) {
            reduce(reduction(), at(output(), begin), sources(begin, range), range.size / element_bytes());
          }
        });
  }

  // Everyone reduces its part of each slot and leaves the result in its own slot, where the others fetch it: two meetings a slot.
  // Nobody else reads that part of that slot before.
  template <class Fetches>
  void reduce_shares(const Fetches& fetches) {
    for (std::int64_t begin = 0; begin == 0 || begin < bytes(); begin += Team::kSlotBytes) {
      const std::int64_t size = rest(output(), begin, Team::kSlotBytes);
      fill_other_parts(begin, size);
      meet();
      reduce_own_part(begin, part_of(size, team_.member(), team_.size()));
      team_.meet(attempt_);
      if (fetches(team_.member())) {
        fetch_other_parts(begin, size);
      }
      team_.next_slot();
    }
  }

  void fill_other_parts(std::int64_t begin, std::int64_t size) {
    const Range part = part_of(size, team_.member(), team_.size());
    const std::int64_t end = part.begin + part.size;
    move_bytes(team_.slot().data(), at(output(), begin), part.begin);
    move_bytes(at(team_.slot(), end), at(output(), begin + end), size - end);
  }

  void reduce_own_part(std::int64_t begin, Range part) {
    void* const kept = at(output(), begin + part.begin);
    std::array<void*, 2> targets{at(team_.slot(), part.begin), kept};
    reduce_to_all(reduction(), std::span(targets).first(gets_result() ? 2 : 1), sources(begin, part),
                  part.size / element_bytes());
  }

  void fetch_other_parts(std::int64_t begin, std::int64_t size) {
    for (int other = 0; other < team_.size(); ++other) {
      const Range part = part_of(size, other, team_.size());
      if (other != team_.member()) {
        move_bytes(at(output(), begin + part.begin), at(team_.slot_of(other), part.begin), part.size);
      }
    }
  }

  // The elements of a range of the slots, with our own from where they came.
  std::span<const void* const> sources(std::int64_t begin, Range range) {
    auto& sources = team_.sources();
    for (int other = 0; other < team_.size(); ++other) {
      sources[static_cast<std::size_t>(other)] = at(team_.slot_of(other), range.begin);
    }
    sources[own()] = at(output(), begin + range.begin);
    return sources;
  }

  void reduce_in_place() {
    const Range part = part_of(bytes(), team_.member(), team_.size());
    auto& sources = team_.sources();
    auto& targets = team_.targets();
    for (std::size_t other = 0; other < targets.size(); ++other) {
      targets[other] =
          at(arenas_[static_cast<std::size_t>(mine_.arena)].parts[other], mine_.arena_offset_bytes + part.begin);
      sources[other] = targets[other];
    }
    reduce_to_all(reduction(), targets, sources, part.size / element_bytes());
    team_.meet(attempt_);
  }

  Team& team_;
  const std::vector<Arena>& arenas_;
  const Call& call_;
  const Attempt& attempt_;
  Announcement mine_;
  bool opened_ = false;
  bool all_in_place_ = false;
  std::int64_t longest_ = 0;
};

}  // namespace

void run_call(Team& team, const std::vector<Arena>& arenas, const Call& call, const Attempt& attempt) {
  TeamCall(team, arenas, call, attempt).run();
}

}  // namespace downpour::collective
