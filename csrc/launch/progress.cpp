#include "csrc/launch/progress.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "csrc/base/text.h"

namespace downpour::launch {
namespace {

std::string padded(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string rate_text(double rate) { return rate < 100 ? fixed(rate, 1) : grouped(std::llround(rate)); }

std::string worker_line(int index, const WorkerScore& score, std::size_t width) {
  std::string line = to_text(worker(index));
  line.resize(std::max(line.size(), width), ' ');
  line +=
      "  step " + padded(grouped(score.step), 9) + "  " + padded(rate_text(score.samples_per_second), 9) + " samples/s";
  if (score.loss) {
    line += "  loss " + fixed(*score.loss, 4);
  }
  return line + "  staleness " + fixed(score.staleness, 1);
}

}  // namespace

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3; at -= 3) {
    text.insert(at - 3, ",");
  }
  return text;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1000;
  }
  return concat(unit == 0 ? std::to_string(bytes) : fixed(value, 1), " ", kUnits[unit]);
}

std::vector<std::string> progress_lines(const std::map<int, WorkerScore>& workers, std::size_t most) {
  std::vector<std::string> lines;
  const std::size_t width = workers.empty() ? 0 : to_text(worker(workers.rbegin()->first)).size();
  const bool all = workers.size() <= most;
  for (const auto& [index, score] : workers) {
    if (!all && lines.size() + 1 >= most) {
      lines.push_back(concat("... and ", workers.size() - lines.size(), " more workers"));
      break;
    }
    lines.push_back(worker_line(index, score, width));
  }
  return lines;
}

std::string progress_line(const std::map<int, WorkerScore>& workers) {
  double rate = 0;
  double loss = 0;
  double staleness = 0;
  std::int64_t first = INT64_MAX;
  std::int64_t last = 0;
  int losses = 0;
  for (const auto& [index, score] : workers) {
    rate += score.samples_per_second;
    staleness += score.staleness;
    loss += score.loss.value_or(0);
    losses += score.loss ? 1 : 0;
    first = std::min(first, score.step);
    last = std::max(last, score.step);
  }
  const auto count = static_cast<int>(workers.size());
  return concat(rate_text(rate), " samples/s, ", first == last ? "step " : "steps " + grouped(first) + " to ",
                grouped(last), losses > 0 ? ", mean loss " + fixed(loss / losses, 4) : "", ", staleness ",
                fixed(staleness / std::max(count, 1), 1), " (", count, count == 1 ? " worker)" : " workers)");
}

}  // namespace downpour::launch
