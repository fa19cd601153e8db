#include "csrc/ps/push_sender.h"

#include <algorithm>

#include "csrc/ps/layout_parts.h"

namespace downpour::ps {
namespace {

// Slices begin at the next multiple of 64 bytes, so what lies between two of them may travel along.
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

PushSender::PushSender(const ShardLayout& layout, ReplayLog& log, std::int64_t fragment_bytes)
    : layout_(layout), log_(log), fragment_bytes_(fragment_bytes), copied_bytes_(layout.slices.size()) {
  // As many as there can be: no two fragments of one push share a slice, but for the cuts inside of slices.
  runs_.reserve(layout.slices.size() + static_cast<std::size_t>(layout.buffer_bytes / fragment_bytes) + 1);
}

void PushSender::begin() {
  std::fill(copied_bytes_.begin(), copied_bytes_.end(), 0);
  runs_.clear();
  first_run_ = 0;
  run_ = {};
  newest_done_ = false;
}

void PushSender::abandon() {
  begin();
  newest_done_ = true;
  found_.reset();
}

// How many bytes of the slice, from byte `done` of it, the growing run can take; 0: none, it must be flushed.
std::int64_t PushSender::room_for(const Slice& slice, std::int64_t done) const {
  const std::int64_t begin = slice.offset_bytes + done;
  const std::int64_t left = slice.size_bytes() - done;
  if (run_.size() == 0) {
    return std::min(left, fragment_bytes_);
  }
  if (aligned(run_.end) == begin) {
    return std::clamp<std::int64_t>(run_.begin + fragment_bytes_ - begin, 0, left);
  }
  // In front of it only as a whole: inside a slice bytes go in ascending order.
  const bool fits = done == 0 && aligned(begin + left) == run_.begin && run_.end - begin <= fragment_bytes_;
  return fits ? left : 0;
}

void PushSender::extend(const Slice& slice, std::int64_t done, std::int64_t count) {
  const std::int64_t begin = slice.offset_bytes + done;
  if (run_.size() == 0) {
    run_ = {begin, begin + count};
  } else if (begin < run_.begin) {
    run_.begin = begin;
  } else {
    run_.end = begin + count;
  }
  if (run_.size() >= fragment_bytes_) {
    flush_run();
  }
}

void PushSender::flush_run() {
  if (run_.size() > 0) {
    runs_.push_back(run_);
    run_ = {};
  }
}

// [ps 2/7]
bool PushSender::add_some(std::size_t slice_index, const std::byte* gradient) {
  const Slice& slice = layout_.slices[slice_index];
  ReplayRecord& record = log_.newest();
  std::int64_t& done = copied_bytes_[slice_index];
  record.header.present[slice_index] = true;
  std::int64_t count = room_for(slice, done);
  if (count == 0) {
    flush_run();
    count = room_for(slice, done);
  }
  record.checks[slice.group] += copy_and_check(slice.dtype, count / size_bytes(slice.dtype), gradient + done,
                                               log_.slot(record).data() + slice.offset_bytes + done);
  extend(slice, done, count);
  done += count;
  return done < slice.size_bytes();
}

const PushSender::Fragment* PushSender::next() {
  if (!found_ && !(walking() ? find_again() : find_newest())) {
    return nullptr;
  }
  return &*found_;
}

bool PushSender::has_ended_more() const { return walking() || (!newest_done_ && log_.newest().ended); }

bool PushSender::has_more() const { return has_ended_more() || (!newest_done_ && first_run_ < runs_.size()); }

bool PushSender::find_newest() {
  if (newest_done_) {
    return false;
  }
  ReplayRecord& newest = log_.newest();
  if (newest.ended) {
    flush_run();
  }
  const bool has_run = first_run_ < runs_.size();
  if (!has_run && !newest.ended) {
    return false;
  }
  const Run run = has_run ? runs_[first_run_] : Run{};
  const bool last = newest.ended && first_run_ + 1 >= runs_.size();
  found_ = {&newest, static_cast<std::uint64_t>(run.begin), static_cast<std::uint64_t>(run.end), last, false};
  return true;
}

bool PushSender::find_again() {
  ReplayRecord& record = *log_.find(again_);
  const auto run = again_ < known_ ? std::nullopt : next_run_again(record);
  found_ = Fragment{&record, 0, 0, true, true};
  if (run) {
    found_->begin = static_cast<std::uint64_t>(run->begin);
    found_->end = static_cast<std::uint64_t>(run->end);
    found_->last = false;  // whether more follows is seen when it is sent
  }
  return true;
}

// The next stretch of present slices, from byte again_from_ on.
std::optional<PushSender::Run> PushSender::next_run_again(const ReplayRecord& record) {
  Run run;
  for_each_part(layout_, again_from_, layout_.buffer_bytes, [&](const SlicePart& part) {
    const std::int64_t begin = layout_.slices[part.slice].offset_bytes + part.begin_bytes;
    const bool joins = run.size() == 0 || aligned(run.end) == begin;
    const std::int64_t limit = run.size() == 0 ? begin + fragment_bytes_ : run.begin + fragment_bytes_;
    if (record.header.present[part.slice] && joins && begin < limit) {
      run = {run.size() == 0 ? begin : run.begin, std::min(begin + part.size_bytes, limit)};
    }
  });
  return run.size() > 0 ? std::optional(run) : std::nullopt;
}

void PushSender::sent() {
  const Fragment was = *found_;
  found_.reset();
  if (!was.again) {
    first_run_ += was.end > was.begin ? 1 : 0;
    newest_done_ = was.last;
    if (first_run_ == runs_.size()) {
      runs_.clear();
      first_run_ = 0;
    }
  } else if (was.last) {
    ++again_;
    again_from_ = 0;
  } else {
    again_from_ = static_cast<std::int64_t>(was.end);
  }
}

void PushSender::restart(std::uint64_t sequence, std::uint64_t known) {
  const bool has_open = !log_.is_empty() && !log_.newest().ended;
  found_.reset();
  again_ = sequence;
  again_end_ = has_open ? log_.next() - 1 : log_.next();
  again_from_ = 0;
  known_ = known;
  newest_done_ = !has_open;
  if (has_open) {
    rebuild_runs();
  }
}

void PushSender::rebuild_runs() {
  runs_.clear();
  first_run_ = 0;
  run_ = {};
  for (std::size_t i = 0; i < layout_.slices.size(); ++i) {
    const Slice& slice = layout_.slices[i];
    for (std::int64_t done = 0; done < copied_bytes_[i];) {
      Slice copied = slice;
      copied.count = copied_bytes_[i] / size_bytes(slice.dtype);
      const std::int64_t count = room_for(copied, done);
      if (count == 0) {
        flush_run();
        continue;
      }
      extend(copied, done, count);
      done += count;
    }
  }
}

}  // namespace downpour::ps
