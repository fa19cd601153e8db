#include "csrc/launch/restart_policy.h"

#include <algorithm>
#include <csignal>

namespace downpour::launch {

RestartPolicy::RestartPolicy(const PolicyOptions& options) : options_(options) {
  for (int index = 0; index < options.servers; ++index) {
    processes_[server(index)];
  }
  for (int rank = 0; rank < options.workers; ++rank) {
    processes_[worker(rank)];
  }
}

Decisions RestartPolicy::begin() {
  Decisions out;
  for (int index = 0; index < options_.servers; ++index) {
    start(server(index), processes_.at(server(index)), out);
  }
  for (int rank = 0; rank < options_.workers; ++rank) {
    start(worker(rank), processes_.at(worker(rank)), out);
  }
  return out;
}

void RestartPolicy::start(Target who, Process& process, Decisions& out) {
  process.state = State::kAlive;
  process.last_signal = 0;
  out.push_back(StartProcess{who, process.restarts});
}

void RestartPolicy::signal(Target who, int number, Decisions& out) {
  Process& process = processes_.at(who);
  if (process.state == State::kAlive) {
    process.last_signal = number;
    out.push_back(SendSignal{who, number});
  }
}

void RestartPolicy::signal_workers(int number, Decisions& out) {
  for (int rank = 0; rank < options_.workers; ++rank) {
    signal(worker(rank), number, out);
  }
}

Duration RestartPolicy::pause(int restarts) const {
  Duration result = options_.first_pause;
  for (int doubled = 0; doubled < restarts && result < options_.largest_pause; ++doubled) {
    result *= 2;
  }
  return std::min(result, options_.largest_pause);
}

Decisions RestartPolicy::exited(Target who, const ExitStatus& status, Finished finished, TimePoint now,
                                const std::string& hopeless) {
  Decisions out;
  Process& process = processes_.at(who);
  const bool done = status.success() && (is_worker(who) || finished == Finished::kYes || phase_ == Phase::kClosing);
  process.state = done ? State::kSucceeded : State::kEnded;
  if (phase_ == Phase::kRunning) {
    if (!done) {
      failed(who, process, Failed{.who = who, .status = status, .hopeless = hopeless}, finished, now, out);
    } else if (all_workers(State::kSucceeded)) {
      close(now);
    }
  } else if (phase_ != Phase::kOver) {
    follow(who, process, status, out);
  }
  advance(now, out);
  return out;
}

void RestartPolicy::failed(Target who, Process& process, Failed failure, Finished finished, TimePoint now,
                           Decisions& out) {
  const bool together = is_worker(who) && options_.servers == 0;
  const int used = together ? round_ : process.restarts;
  failure.allowed = is_worker(who) ? options_.worker_restarts : options_.server_restarts;
  // Once the servers have been told to end, there is nobody left to rejoin.
  const bool too_late = options_.servers > 0 && finished == Finished::kYes;
  // Every worker has its final values by then; what is missing at most is a last snapshot.
  if (too_late && !is_worker(who)) {
    failure.consequence = Failed::Consequence::kHarmless;
    out.emplace_back(std::move(failure));
    return;
  }
  if (!failure.hopeless.empty() || too_late || used >= failure.allowed) {
    failure.no_restart = !failure.hopeless.empty() ? Failed::NoRestart::kHopeless
                         : too_late                ? Failed::NoRestart::kAllFinished
                                                   : Failed::NoRestart::kNoneLeft;
    end_with(std::move(failure), now, out);
    return;
  }
  failure.consequence = Failed::Consequence::kRestart;
  failure.restart = used + 1;
  failure.pause = pause(used);
  out.push_back(failure);
  if (together) {
    round_due_ = now + failure.pause;
    round_failure_ = std::move(failure);
    renew(now, out);
  } else {
    process.state = State::kWaiting;
    process.due = now + failure.pause;
    ++process.restarts;
  }
}

void RestartPolicy::end_with(Failed failure, TimePoint now, Decisions& out) {
  failure.consequence = Failed::Consequence::kEndsJob;
  const ExitStatus status = failure.status;
  AbortJob abort{
      concat(to_text(failure.who), " failed: ", failure.hopeless.empty() ? status.text() : failure.hopeless)};
  out.emplace_back(std::move(failure));
  out.emplace_back(std::move(abort));
  signal_workers(SIGTERM, out);
  // A server that ends before its time has failed whatever it says.
  stop(status.success() ? 1 : status.shell_code(), now);
}

void RestartPolicy::follow(Target who, const Process& process, const ExitStatus& status, Decisions& out) const {
  const int sent = process.last_signal;
  if (!is_worker(who) && sent == SIGKILL && status.signal == SIGKILL) {
    out.push_back(CutOff{who});
  }
  // A program that catches the signal it is asked to end with says so by a code: any code after the user's own signal.
  // A server that was told of the end says that it was aborted.
  const bool by_code = status.signal == 0 && (interrupted_ || !is_worker(who));
  const bool asked = (sent != 0 && (status.signal == sent || status.code == 128 + sent)) || by_code;
  if (!status.success() && !asked) {
    const bool harmless = phase_ == Phase::kClosing && !is_worker(who);
    out.push_back(Failed{.who = who,
                         .status = status,
                         .consequence = harmless ? Failed::Consequence::kHarmless : Failed::Consequence::kNone});
  }
}

void RestartPolicy::renew(TimePoint now, Decisions& out) {
  phase_ = Phase::kRenewing;
  kill_at_ = now + options_.grace;
  signal_workers(SIGTERM, out);
}

void RestartPolicy::stop(int exit_code, TimePoint now) {
  phase_ = Phase::kStopping;
  exit_code_ = exit_code;
  terminate_at_.reset();
  kill_workers_at_ = now + worker_grace();
  kill_at_ = now + options_.grace;
}

// Servers save once the workers are gone: one that heeds no signal must leave them time for it.
Duration RestartPolicy::worker_grace() const { return options_.servers > 0 ? options_.grace * 2 / 3 : options_.grace; }

void RestartPolicy::close(TimePoint now) {
  phase_ = Phase::kClosing;
  exit_code_ = 0;
  kill_at_ = now + options_.closing;
}

// What it still had in flight counts no more, so the servers need not wait until the kernel is done with it.
void RestartPolicy::kill_workers(Decisions& out) {
  kill_workers_at_.reset();
  if (any(Target::Kind::kWorker, State::kAlive)) {
    signal_workers(SIGKILL, out);
    release_servers(out);
  }
}

void RestartPolicy::kill_now(TimePoint now, Decisions& out) {
  killed_ = true;
  terminate_at_.reset();
  kill_workers_at_.reset();
  kill_at_.reset();
  signal_workers(SIGKILL, out);
  for (int index = 0; index < options_.servers; ++index) {
    signal(server(index), SIGKILL, out);
  }
  give_up_at_ = now + options_.give_up;
}

Decisions RestartPolicy::silent(int index) {
  Decisions out;
  if (phase_ == Phase::kRunning || phase_ == Phase::kClosing) {
    signal(server(index), SIGKILL, out);
  }
  return out;
}

Decisions RestartPolicy::interrupted(int number, TimePoint now) {
  Decisions out;
  if (phase_ == Phase::kOver) {
    return out;
  }
  const bool again = phase_ == Phase::kStopping || number == SIGQUIT;
  if (phase_ != Phase::kStopping) {
    interrupted_ = true;
    stop(128 + number, now);
  }
  if (again) {
    kill_now(now, out);
  } else {
    signal_workers(number, out);
    if (number != SIGTERM) {
      terminate_at_ = now + options_.grace / 2;
    }
  }
  advance(now, out);
  return out;
}

Decisions RestartPolicy::check(TimePoint now) {
  Decisions out;
  if (phase_ == Phase::kOver) {
    return out;
  }
  if (give_up_at_ && now >= *give_up_at_) {
    give_up(out);
    return out;
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_now(now, out);
  } else if (kill_workers_at_ && now >= *kill_workers_at_) {
    kill_workers(out);
  } else if (terminate_at_ && now >= *terminate_at_) {
    terminate_at_.reset();
    signal_workers(SIGTERM, out);
  }
  advance(now, out);
  return out;
}

// What SIGKILL does not end is left behind.
void RestartPolicy::give_up(Decisions& out) {
  if (phase_ == Phase::kRenewing) {
    round_failure_.consequence = Failed::Consequence::kEndsJob;
    round_failure_.no_restart = Failed::NoRestart::kOthersStay;
    exit_code_ = round_failure_.status.success() ? 1 : round_failure_.status.shell_code();
    out.emplace_back(round_failure_);
  }
  phase_ = Phase::kOver;
  for (const auto& [who, process] : processes_) {
    if (!is_worker(who) && process.state == State::kAlive) {
      out.push_back(CutOff{who});
    }
  }
  out.push_back(EndJob{exit_code_});
}

bool RestartPolicy::any(Target::Kind kind, State state) const {
  return std::any_of(processes_.begin(), processes_.end(),
                     [&](const auto& entry) { return entry.first.kind == kind && entry.second.state == state; });
}

bool RestartPolicy::all_workers(State state) const {
  return std::all_of(processes_.begin(), processes_.end(),
                     [&](const auto& entry) { return !is_worker(entry.first) || entry.second.state == state; });
}

void RestartPolicy::advance(TimePoint now, Decisions& out) {
  if (phase_ == Phase::kRenewing && now >= round_due_) {
    advance_renewal(out);
  } else if (phase_ == Phase::kRunning) {
    for (auto& [who, process] : processes_) {
      if (process.state == State::kWaiting && now >= process.due) {
        start(who, process, out);
      }
    }
  } else if (ending() && phase_ != Phase::kOver) {
    advance_ending(out);
  }
}

void RestartPolicy::advance_renewal(Decisions& out) {
  if (any(Target::Kind::kWorker, State::kAlive)) {
    return;
  }
  kill_at_.reset();
  give_up_at_.reset();
  killed_ = false;
  phase_ = Phase::kRunning;
  out.push_back(NewRound{++round_});
  for (auto& [who, process] : processes_) {
    ++process.restarts;
    start(who, process, out);
  }
}

void RestartPolicy::advance_ending(Decisions& out) {
  if (any(Target::Kind::kWorker, State::kAlive)) {
    return;
  }
  if (!any(Target::Kind::kServer, State::kAlive)) {
    phase_ = Phase::kOver;
    out.push_back(EndJob{exit_code_});
  } else {
    // Servers outlive the workers, so that these can settle what they pushed.
    release_servers(out);
  }
}

void RestartPolicy::release_servers(Decisions& out) {
  if (!released_ && !killed_ && any(Target::Kind::kServer, State::kAlive)) {
    released_ = true;
    out.push_back(ReleaseServers{});
    terminate_at_.reset();
    kill_workers_at_.reset();
  }
}

std::optional<TimePoint> RestartPolicy::deadline() const {
  if (phase_ == Phase::kOver) {
    return std::nullopt;
  }
  std::optional<TimePoint> first;
  const auto consider = [&](std::optional<TimePoint> when) {
    first = when && (!first || *when < *first) ? when : first;
  };
  consider(terminate_at_);
  consider(kill_workers_at_);
  consider(kill_at_);
  consider(give_up_at_);
  if (phase_ == Phase::kRenewing && !any(Target::Kind::kWorker, State::kAlive)) {
    consider(round_due_);
  }
  for (const auto& [who, process] : processes_) {
    consider(phase_ == Phase::kRunning && process.state == State::kWaiting ? std::optional(process.due) : std::nullopt);
  }
  return first;
}

int RestartPolicy::restarts(Target who) const { return processes_.at(who).restarts; }

}  // namespace downpour::launch
