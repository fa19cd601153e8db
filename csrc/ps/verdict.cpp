#include "csrc/ps/verdict.h"

#include <algorithm>

namespace downpour::ps {
namespace {

// Worker, next sequence and one verdict: less than this no encoded row takes.
constexpr std::size_t kMinRowBytes = 4 + 8 + 1;
constexpr std::size_t kRunBytes = 8 + 8;
constexpr std::uint8_t kLastVerdict = static_cast<std::uint8_t>(Verdict::kDuplicate);

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kApplied: return "applied";
    case Verdict::kStale: return "stale";
    case Verdict::kRefused: return "refused";
    case Verdict::kDuplicate: return "duplicate";
  }
  return "no verdict";
}

std::uint64_t VerdictTable::next_sequence(int worker) const {
  const auto row = rows_.find(worker);
  return row == rows_.end() ? 0 : row->second.next;
}

std::optional<Verdict> VerdictTable::find(int worker, std::uint64_t sequence) const {
  const auto row = rows_.find(worker);
  if (row == rows_.end() || sequence >= row->second.next || row->second.next - sequence > kWindow) {
    return std::nullopt;
  }
  const std::uint8_t verdict = row->second.last[sequence % kWindow];
  return verdict == kNoVerdict ? std::nullopt : std::optional(static_cast<Verdict>(verdict));
}

VerdictTable::Row& VerdictTable::row_of(int worker) {
  DOWNPOUR_CHECK(worker >= 0 && worker < kMaxWorkers, "worker ", worker, " is outside 0 to ", kMaxWorkers - 1);
  return rows_[worker];
}

void VerdictTable::record(int worker, std::uint64_t sequence, Verdict verdict) {
  DOWNPOUR_CHECK(sequence == next_sequence(worker), "worker ", worker, ": a verdict on push ", sequence,
                 ", expected push ", next_sequence(worker));
  Row& row = row_of(worker);
  row.last[sequence % kWindow] = static_cast<std::uint8_t>(verdict);
  row.next = sequence + 1;
}

std::uint64_t VerdictTable::skip_to(int worker, std::uint64_t sequence) {
  DOWNPOUR_CHECK(sequence <= kMaxSequence, "worker ", worker, ": a skip to push ", sequence, ", the limit is ",
                 kMaxSequence);
  const std::uint64_t next = next_sequence(worker);
  if (sequence <= next) {
    return 0;
  }
  Row& row = row_of(worker);
  const std::uint64_t kept_from = sequence > kWindow ? sequence - kWindow : 0;
  for (std::uint64_t lost = std::max(next, kept_from); lost < sequence; ++lost) {
    row.last[lost % kWindow] = kNoVerdict;
  }
  row.next = sequence;
  return sequence - next;
}

void VerdictTable::encode(Writer& out) const {
  std::vector<int> workers;
  workers.reserve(rows_.size());
  for (const auto& [worker, row] : rows_) {
    workers.push_back(worker);
  }
  std::sort(workers.begin(), workers.end());
  out.put(static_cast<std::uint32_t>(workers.size()));
  for (const int worker : workers) {
    const Row& row = rows_.at(worker);
    out.put(static_cast<std::int32_t>(worker)).put(row.next);
    for (std::uint64_t s = row.next - std::min(row.next, kWindow); s < row.next; ++s) {
      out.put(row.last[s % kWindow]);
    }
  }
}

VerdictTable::Row VerdictTable::decode_row(Reader& in, int worker) {
  Row row;
  row.next = in.get<std::uint64_t>();
  DOWNPOUR_CHECK_AS(ProtocolError, row.next > 0 && row.next <= kMaxSequence + 1, "verdict table: worker ", worker,
                    ": next push ", row.next, ", expected 1 to ", kMaxSequence + 1);
  const std::uint64_t kept = std::min(row.next, kWindow);
  std::uint64_t sequence = row.next - kept;
  for (const std::byte byte : in.take(kept)) {
    const auto verdict = static_cast<std::uint8_t>(byte);
    DOWNPOUR_CHECK_AS(ProtocolError, verdict <= kLastVerdict, "verdict table: worker ", worker, ", push ", sequence,
                      ": verdict ", int{verdict}, " is unknown");
    row.last[sequence++ % kWindow] = verdict;
  }
  return row;
}

VerdictTable VerdictTable::decode(Reader& in) {
  VerdictTable table;
  const std::uint32_t count = in.get_count(kMinRowBytes);
  int before = -1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const int worker = in.get<std::int32_t>();
    DOWNPOUR_CHECK_AS(ProtocolError, worker > before && worker < kMaxWorkers, "verdict table: worker ", worker,
                      " after worker ", before, ", expected ascending ones below ", kMaxWorkers);
    table.rows_.emplace(worker, decode_row(in, worker));
    before = worker;
  }
  return table;
}

LeaseTable::LeaseTable(Run run) {
  DOWNPOUR_CHECK(run.begin > 0 && run.end > run.begin && run.end <= kMaxLease + 1, "leases ", run.begin, " to ",
                 run.end, ": expected a run within 1 to ", kMaxLease);
  append(run);
}

void LeaseTable::append(Run run) {
  runs_.push_back(run);
  count_ += run.end - run.begin;
}

bool LeaseTable::decided(std::uint64_t lease) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), lease,
                                      [](std::uint64_t value, const Run& run) { return value < run.begin; });
  return after != runs_.begin() && lease < std::prev(after)->end;
}

void LeaseTable::record(std::uint64_t lease) {
  if (lease == 0 || decided(lease)) {
    return;
  }
  DOWNPOUR_CHECK(lease <= kMaxLease, "lease ", lease, " is above the limit ", kMaxLease);
  ++count_;
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), lease,
                                      [](std::uint64_t value, const Run& run) { return value < run.begin; });
  const bool joins_before = after != runs_.begin() && std::prev(after)->end == lease;
  const bool joins_after = after != runs_.end() && after->begin == lease + 1;
  if (joins_before && joins_after) {
    std::prev(after)->end = after->end;
    runs_.erase(after);
  } else if (joins_before) {
    std::prev(after)->end = lease + 1;
  } else if (joins_after) {
    after->begin = lease;
  } else {
    runs_.insert(after, {lease, lease + 1});
  }
}

std::uint64_t LeaseTable::count() const { return count_; }
const std::vector<LeaseTable::Run>& LeaseTable::runs() const { return runs_; }

LeaseTable LeaseTable::intersection(const LeaseTable& other) const {
  LeaseTable both;
  for (auto a = runs_.begin(), b = other.runs_.begin(); a != runs_.end() && b != other.runs_.end();) {
    const Run common{std::max(a->begin, b->begin), std::min(a->end, b->end)};
    if (common.begin < common.end) {
      both.append(common);
    }
    a->end < b->end ? ++a : ++b;
  }
  return both;
}

LeaseTable LeaseTable::without(const LeaseTable& other) const {
  LeaseTable rest;
  auto b = other.runs_.begin();
  for (Run run : runs_) {
    for (; b != other.runs_.end() && b->begin < run.end; ++b) {
      if (run.begin < b->begin) {
        rest.append({run.begin, b->begin});
      }
      run.begin = std::max(run.begin, b->end);
      if (run.begin >= run.end) {
        break;
      }
    }
    if (run.begin < run.end) {
      rest.append(run);
    }
  }
  return rest;
}

LeaseTable LeaseTable::first_runs(std::size_t most) const {
  LeaseTable first;
  for (std::size_t i = 0; i < std::min(most, runs_.size()); ++i) {
    first.append(runs_[i]);
  }
  return first;
}

void LeaseTable::encode(Writer& out) const {
  out.put(static_cast<std::uint32_t>(runs_.size()));
  for (const Run& run : runs_) {
    out.put(run.begin).put(run.end);
  }
}

LeaseTable LeaseTable::decode(Reader& in) {
  LeaseTable table;
  const std::uint32_t count = in.get_count(kRunBytes);
  table.runs_.reserve(count);
  std::uint64_t before = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    Run run;
    run.begin = in.get<std::uint64_t>();
    run.end = in.get<std::uint64_t>();
    DOWNPOUR_CHECK_AS(ProtocolError, run.begin > before && run.end > run.begin && run.end <= kMaxLease + 1,
                      "lease table: leases ", run.begin, " to ", run.end, " after ", before, " are no ascending run");
    table.append(run);
    before = run.end;
  }
  return table;
}

}  // namespace downpour::ps
