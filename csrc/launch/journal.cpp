#include "csrc/launch/journal.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/text.h"
#include "csrc/launch/progress.h"
#include "csrc/launch/tail.h"

namespace downpour::launch {
namespace {

constexpr std::size_t kReadErrors = 1000;  // behind which the frames of one stack do not hide anything
constexpr std::size_t kKeptErrors = 50;
constexpr std::size_t kShownErrors = 10;  // the rest is in the JSON and the log

std::string no_restart_text(const Failed& failure) {
  switch (failure.no_restart) {
    case Failed::NoRestart::kHopeless: return "a restart would not help, ";
    case Failed::NoRestart::kAllFinished: return "every worker had finished, so nobody is started again, ";
    case Failed::NoRestart::kOthersStay: return "the others of its round do not end, ";
    default:
      return failure.allowed > 0 ? concat("no restart left (", failure.allowed, " allowed, --max-restarts), ") : "";
  }
}

}  // namespace

Journal::Journal(Summary begun, Output& output, const Clock& clock, std::function<std::optional<MemoryGroup>()> memory)
    : summary_(std::move(begun)),
      output_(output),
      clock_(clock),
      begun_(clock.now()),
      events_([&output](std::string line) { output.event(std::move(line)); }),
      host_(host_name()),
      memory_(std::move(memory)) {
  out_of_memory();
}

void Journal::planned(const std::string& text, bool quiet) {
  events_.plan(text, summary_);
  if (!quiet) {
    log_info(text);
  }
}

void Journal::started(const Life& life) {
  events_.start(life.who, life.number, life.pid, life.log);
  lives_[life.who] = life.number;
  if (life.number > 0) {
    summary_.restarts[life.who] = life.number;
    scoreboard_.restarted(life.who);
  }
}

void Journal::ended(const Life& life) { events_.exit(life.who, life.number, life.pid, life.ended->status); }

// What the kernel has killed in our control group since we looked last; nullopt: nothing.
std::optional<std::string> Journal::out_of_memory() {
  const auto group = memory_();
  const std::int64_t kills = group ? group->out_of_memory_kills : 0;
  if (kills <= std::exchange(known_memory_kills_, kills)) {
    return std::nullopt;
  }
  return concat("out of memory: the kernel killed a process of this control group",
                group->limit_bytes
                    ? concat(", whose limit is ", bytes_text(static_cast<std::uint64_t>(*group->limit_bytes)))
                    : "");
}

std::string Journal::hint(const Failed& failure, const Life& life) {
  if (!failure.hopeless.empty()) {
    return failure.hopeless;
  }
  if (life.was_silent) {
    return "it had not been heard from for too long (--silence), so the launcher killed it";
  }
  if (life.ended->status.signal != SIGKILL || life.killed_by_us) {
    return {};
  }
  return out_of_memory().value_or(
      "nobody in this job sent that SIGKILL: the kernel may have been out of memory (see dmesg), or somebody used "
      "kill -9");
}

void Journal::failed(const Failed& failure, const Life& life) {
  FailureRecord record{.who = life.who,
                       .life = life.number,
                       .pid = life.pid,
                       .host = host_,
                       .when = std::chrono::system_clock::now(),
                       .after = clock_.now() - life.started,
                       .status = failure.status,
                       .consequence = failure.consequence,
                       .peak_memory_bytes = life.ended ? life.ended->peak_memory_bytes : 0,
                       .hint = life.ended ? hint(failure, life) : "",
                       .last_errors = {},
                       .digest = {},
                       .log = life.log};
  const std::string reason = record.hint.empty() ? "" : concat(" (", record.hint, ")");
  if (failure.consequence == Failed::Consequence::kRestart) {
    log_warning(to_text(life.who), ": ", failure.status.text(), reason, "; restart ", failure.restart, " of ",
                failure.allowed, " in ", fixed(seconds(failure.pause), 1), " s");
    events_.restart(failure);
  } else if (failure.consequence == Failed::Consequence::kEndsJob) {
    log_error(to_text(life.who), ": ", failure.status.text(), reason, "; ", no_restart_text(failure), "ending the job");
  } else if (failure.consequence == Failed::Consequence::kHarmless) {
    log_warning(to_text(life.who), ": ", failure.status.text(), reason,
                "; every worker had finished, only its last snapshot may be missing");
  }
  summary_.failures.push_back(std::move(record));
}

void Journal::cut_off(Target who) {
  summary_.cut_off.push_back(who);
  log_warning(to_text(who), " was killed before it had written its last snapshot");
}

void Journal::interrupted(int signal, Duration grace) {
  events_.signal(signal);
  if (summary_.ended_by.empty()) {
    summary_.ended_by = signal_name(signal);
    log_info(signal_name(signal), ": ending the job, ", fixed(seconds(grace), 1),
             " s at most (--grace); once more kills at once");
  }
}

void Journal::noted(const std::string& text) {
  events_.note(text);
  log_info(text);
}

void Journal::ready(Target who) {
  if (const auto at = lives_.find(who); at != lives_.end() && ready_.emplace(who, at->second).second) {
    events_.ready(who, at->second);
  }
}

void Journal::progress(int rank, const ps::Progress& progress) {
  ready(worker(rank));
  scoreboard_.progress(rank, progress, clock_.now());
}

void Journal::status(const ps::ServerStatus& status) {
  ready(server(status.server));
  scoreboard_.status(status);
}

void Journal::report(bool quiet) {
  const auto workers = scoreboard_.workers(clock_.now());
  events_.progress(workers);
  if (!quiet) {
    output_.say("downpour: " + progress_line(workers) + "\n");
  }
}

Summary& Journal::close(int exit_code, const Output& output) {
  summary_.exit_code = exit_code;
  summary_.elapsed = clock_.now() - begun_;
  summary_.totals = scoreboard_.totals();
  for (FailureRecord& failure : summary_.failures) {
    const auto lines = output.last_errors(failure.who, failure.life, kReadErrors);
    const auto kept = static_cast<std::ptrdiff_t>(std::min(lines.size(), kKeptErrors));
    failure.last_errors.assign(lines.end() - kept, lines.end());
    failure.digest = digest_of(lines, kShownErrors);
  }
  return summary_;
}

void Journal::tell(bool quiet) {
  events_.end(summary_);
  if (!quiet || summary_.exit_code != 0) {
    output_.say(to_text(summary_));
  }
}

}  // namespace downpour::launch
