#include "csrc/launch/summary.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "csrc/base/text.h"
#include "csrc/launch/progress.h"

namespace downpour::launch {
namespace {

using Json = nlohmann::ordered_json;

std::string significant(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

std::string last_errors_text(const FailureRecord& failure) {
  const auto& shown = failure.digest;
  if (shown.empty()) {
    return "  it wrote nothing to standard error\n";
  }
  const bool all = shown.size() <= failure.last_errors.size() &&
                   std::equal(shown.rbegin(), shown.rend(), failure.last_errors.rbegin());
  std::string text = concat("  last ", shown.size(), shown.size() == 1 ? " line" : " lines", " of standard error",
                            all ? "" : ", but for stack frames", ":\n");
  for (const std::string& line : shown) {
    text += "  | " + line + "\n";
  }
  return text;
}

// What the lines below say themselves is not said twice.
std::string hint_text(const FailureRecord& failure) {
  const auto says_it = [&](const std::string& line) { return line.find(failure.hint) != std::string::npos; };
  return failure.hint.empty() || std::ranges::any_of(failure.digest, says_it) ? "" : "  " + failure.hint + "\n";
}

std::string cause_text(const FailureRecord& failure) {
  std::string text = concat(
      "downpour: ", to_text(failure.who), " failed first: ", failure.status.text(), "\n  pid ", failure.pid, " on ",
      failure.host, ", ", iso_text(failure.when), ", ", fixed(seconds(failure.after), 1), " s after its start",
      failure.life > 0 ? concat(", restarted ", failure.life, failure.life == 1 ? " time" : " times", " before") : "",
      ", peak memory ", bytes_text(static_cast<std::uint64_t>(failure.peak_memory_bytes)), "\n");
  text += hint_text(failure);
  text += failure.log.empty() ? "" : "  log: " + failure.log + "\n";
  return text + last_errors_text(failure);
}

// Nobody needed it any more.
std::string harmless_text(const FailureRecord& failure) {
  return concat("downpour: warning: ", to_text(failure.who), ": ", failure.status.text(),
                " when every worker had finished; only its last snapshot may be missing",
                failure.hint.empty() ? "" : "; " + failure.hint, "\n");
}

std::string other_text(const FailureRecord& failure) {
  if (failure.consequence == Failed::Consequence::kHarmless) {
    return harmless_text(failure);
  }
  const bool recovered = failure.consequence == Failed::Consequence::kRestart;
  return concat("downpour: ", recovered ? "restarted after a failure: " : "afterwards: ", to_text(failure.who), ": ",
                failure.status.text(), ", ", iso_text(failure.when), failure.hint.empty() ? "" : "; " + failure.hint,
                failure.log.empty() ? "" : "; log: " + failure.log, "\n");
}

std::string failures_text(const Summary& summary) {
  const FailureRecord* first = cause(summary);
  std::string text = first == nullptr ? "" : cause_text(*first);
  for (const FailureRecord& failure : summary.failures) {
    text += &failure == first ? "" : other_text(failure);
  }
  return text;
}

std::string staleness_text(const ps::ShardCounters& counters) {
  std::string text;
  for (int bucket = 0; bucket < ps::ShardCounters::kStalenessBuckets; ++bucket) {
    const std::uint64_t count = counters.staleness[static_cast<std::size_t>(bucket)];
    if (count > 0) {
      text += concat(
          text.empty() ? "" : ", ", ps::staleness_bucket_name(bucket), ": ",
          fixed(100.0 * static_cast<double>(count) / static_cast<double>(std::max<std::uint64_t>(counters.applied, 1)),
                1),
          " %");
    }
  }
  return concat(text, "; largest ", counters.max_staleness_seen);
}

std::string counted(std::uint64_t count) { return grouped(static_cast<std::int64_t>(count)); }

std::string learning_text(const Totals& totals) {
  std::string text = totals.loss ? concat("  loss       ", fixed(*totals.loss, 4), " (the last reported)\n") : "";
  if (totals.shards.applied > 0) {
    text += concat("  gradient   norm ", significant(totals.shards.last_gradient_norm), " (of the last push)\n");
  }
  return text;
}

std::string updates_text(const Totals& totals) {
  const ps::ShardCounters& shards = totals.shards;
  std::string text = concat("  updates    ", counted(shards.applied), " applied, ", counted(shards.stale), " stale, ",
                            counted(shards.refused), " refused, ", counted(shards.duplicates), " duplicate, ",
                            counted(shards.replayed), " replayed (per shard)\n");
  text += concat("  traffic    ", bytes_text(shards.pushed_bytes), " pushed, ", bytes_text(shards.pulled_bytes),
                 " pulled\n");
  text += shards.applied == 0 ? "" : concat("  staleness  ", staleness_text(shards), "\n");
  return text;
}

std::string losses_text(const Totals& totals) {
  std::string text;
  if (totals.lost > 0 || totals.shards.lost > 0) {
    text += concat("  LOST       ", counted(std::max(totals.lost, totals.shards.lost)),
                   " pushes could not be replayed after a restart (per shard)\n");
  }
  return totals.snapshot_error.empty() ? text : text + "  SNAPSHOTS FAIL: " + totals.snapshot_error + "\n";
}

std::string cut_off_text(const std::vector<Target>& servers) {
  std::string text;
  for (const Target who : servers) {
    text += concat(text.empty() ? "  CUT OFF    " : ", ", to_text(who));
  }
  return text.empty() ? text : text + ": killed before the last snapshot was written\n";
}

std::string restarts_text(const std::map<Target, int>& restarts) {
  std::string text;
  for (const auto& [who, count] : restarts) {
    text += concat(text.empty() ? "  restarts   " : ", ", to_text(who), ": ", count);
  }
  return text.empty() ? text : text + "\n";
}

std::string outcome_text(const Summary& summary) {
  const std::string result = summary.exit_code == 0     ? "succeeded"
                             : summary.ended_by.empty() ? concat("failed with exit code ", summary.exit_code)
                                                        : "ended by " + summary.ended_by;
  return concat("downpour: the job ", result, " after ", fixed(seconds(summary.elapsed), 1), " s",
                summary.run_folder.empty() ? "" : "; run folder " + summary.run_folder, "\n");
}

std::string consequence_text(Failed::Consequence consequence) {
  switch (consequence) {
    case Failed::Consequence::kRestart: return "restart";
    case Failed::Consequence::kEndsJob: return "end of job";
    default: return "none";
  }
}

Json failure_json(const FailureRecord& failure) {
  Json json = {{"role", role_text(failure.who)},
               {"rank", failure.who.index},
               {"restart", failure.life},
               {"host", failure.host},
               {"pid", failure.pid},
               {"time", iso_text(failure.when)},
               {"after_s", seconds(failure.after)},
               {"exit_code", failure.status.shell_code()},
               {"signal", nullptr},
               {"core_dumped", failure.status.core_dumped},
               {"peak_memory_bytes", failure.peak_memory_bytes},
               {"hint", failure.hint},
               {"log", failure.log},
               {"consequence", consequence_text(failure.consequence)},
               {"last_errors", failure.last_errors}};
  if (failure.status.signal != 0) {
    json["signal"] = signal_name(failure.status.signal);
  }
  return json;
}

// What there may be nothing to say about is left out.
void add_learning(const Totals& totals, Json& json) {
  if (totals.loss) {
    json["loss"] = *totals.loss;
  }
  if (totals.shards.applied > 0) {
    json["gradient_norm"] = totals.shards.last_gradient_norm;
  }
}

Json totals_json(const Totals& totals) {
  const ps::ShardCounters& shards = totals.shards;
  Json staleness = Json::object();
  for (int bucket = 0; bucket < ps::ShardCounters::kStalenessBuckets; ++bucket) {
    staleness[std::string(ps::staleness_bucket_name(bucket))] = shards.staleness[static_cast<std::size_t>(bucket)];
  }
  Json json = {{"samples", totals.samples},
               {"samples_per_s", totals.samples_per_second},
               {"pushed_bytes", shards.pushed_bytes},
               {"pulled_bytes", shards.pulled_bytes},
               {"applied", shards.applied},
               {"stale", shards.stale},
               {"refused", shards.refused},
               {"duplicate", shards.duplicates},
               {"replayed", shards.replayed},
               {"lost", std::max(totals.lost, shards.lost)},
               {"staleness", staleness},
               {"largest_staleness", shards.max_staleness_seen},
               {"snapshots", totals.snapshots},
               {"snapshot_error", totals.snapshot_error}};
  add_learning(totals, json);
  return json;
}

}  // namespace

const FailureRecord* cause(const Summary& summary) {
  const auto at = std::find_if(summary.failures.begin(), summary.failures.end(), [](const FailureRecord& failure) {
    return failure.consequence == Failed::Consequence::kEndsJob;
  });
  return at == summary.failures.end() ? nullptr : &*at;
}

std::string to_text(const Summary& summary) {
  const Totals& totals = summary.totals;
  if (summary.exit_code == 0 && !totals.any_progress && totals.shards.applied == 0 && summary.failures.empty() &&
      summary.restarts.empty() && summary.cut_off.empty()) {
    return {};
  }
  std::string text = failures_text(summary) + outcome_text(summary);
  if (totals.any_progress || totals.shards.applied > 0) {
    const auto rate = static_cast<std::int64_t>(totals.samples_per_second);
    text += concat("  samples    ", grouped(totals.samples), rate > 0 ? concat(" (", grouped(rate), " samples/s)") : "",
                   "\n");
    text += learning_text(totals) + (summary.servers > 0 ? updates_text(totals) : "");
  }
  return text + losses_text(totals) + cut_off_text(summary.cut_off) + restarts_text(summary.restarts);
}

std::string to_json(const Summary& summary) {
  Json restarts = Json::array();
  for (const auto& [who, count] : summary.restarts) {
    restarts.push_back({{"role", role_text(who)}, {"rank", who.index}, {"count", count}});
  }
  Json failures = Json::array();
  for (const FailureRecord& failure : summary.failures) {
    failures.push_back(failure_json(failure));
  }
  Json cut_off = Json::array();
  for (const Target who : summary.cut_off) {
    cut_off.push_back(who.index);
  }
  const FailureRecord* first = cause(summary);
  const Json json = {{"exit_code", summary.exit_code},
                     {"ended_by", summary.ended_by},
                     {"started", iso_text(summary.started)},
                     {"elapsed_s", seconds(summary.elapsed)},
                     {"workers", summary.workers},
                     {"servers", summary.servers},
                     {"run_folder", summary.run_folder},
                     {"totals", totals_json(summary.totals)},
                     {"servers_cut_off", cut_off},
                     {"restarts", restarts},
                     {"cause", first == nullptr ? Json() : failure_json(*first)},
                     {"failures", failures}};
  // Programs print what they like: bytes that are no UTF-8 are replaced.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace downpour::launch
