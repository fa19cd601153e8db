#include "csrc/launch/supervisor.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "csrc/base/log.h"
#include "csrc/launch/descendants.h"
#include "csrc/launch/progress.h"
#include "csrc/launch/run_folder.h"
#include "csrc/transport/tcp.h"

namespace downpour::launch {
namespace {

constexpr Duration kRedrawInterval = std::chrono::milliseconds(250);
constexpr Duration kFirstReport = std::chrono::seconds(1);
constexpr Duration kReportInterval = std::chrono::seconds(10);
constexpr Duration kEndDeadline = std::chrono::seconds(10);
constexpr std::size_t kDrawnLines = 16;
constexpr Duration kReapAgain = std::chrono::milliseconds(20);
constexpr int kCannotStart = 127;  // as shells say it

PolicyOptions policy_options(const RunOptions& options) {
  return {.workers = options.workers,
          .servers = options.servers,
          .worker_restarts = options.worker_restarts,
          .server_restarts = options.server_restarts,
          .grace = options.grace};
}

ps::MembershipOptions membership_options(const RunOptions& options) {
  ps::MembershipOptions result;
  result.workers = options.workers;
  result.servers = options.servers;
  // A debugger stops its process for as long as its user thinks.
  result.silence = options.gdb ? kNever : options.silence;
  result.warn_after = options.gdb ? result.silence : std::min(result.warn_after, options.silence / 2);
  return result;
}

}  // namespace

Supervisor::Supervisor(Job job) : job_(std::move(job)), policy_(policy_options(job_.options)) {
  open_coordinator();
  watch_signals();
}

Supervisor::~Supervisor() {
  listener_.reset();
  coordinator_.reset();
}

void Supervisor::open_coordinator() {
  listener_.reset();
  coordinator_ =
      std::make_unique<ps::Coordinator>(loop_, job_.plan.job, membership_options(job_.options),
                                        job_.plan.endpoints.servers, static_cast<ps::CoordinatorObserver&>(*this));
  Fd socket(::fcntl(job_.sockets.coordinator.get(), F_DUPFD_CLOEXEC, 3));
  DOWNPOUR_CHECK(socket, "cannot listen for the job's members: ", std::strerror(errno));
  listener_ = transport::listen_tcp(loop_, std::move(socket), *coordinator_, transport::SharedMemory::kNever,
                                    transport::exposure_of(job_.options));
}

void Supervisor::watch_signals() {
  loop_.watch(job_.signals.fd(), EPOLLIN, [this](std::uint32_t) { on_signals(); });
  loop_.watch(job_.keeper.fd(), EPOLLIN, [this](std::uint32_t) { on_keeper(); });
}

int Supervisor::run() {
  try {
    carry_out(policy_.begin());
    begun_ = true;
    while (!exit_code_) {
      loop_.run_once(TimePoint::max());
    }
  } catch (...) {
    end_everything();
    throw;
  }
  end_everything();
  return *exit_code_;
}

bool Supervisor::flush_output() {
  bool written = false;
  interrupted_ = false;
  job_.output.finish([this, &written] { loop_.post([&written] { written = true; }); });
  while (!written && !interrupted_) {
    loop_.run_once(TimePoint::max());
  }
  return written;
}

void Supervisor::end_everything() {
  for (auto& [who, process] : processes_) {
    if (process.child) {
      loop_.unwatch(process.child->pidfd());
      process.child.reset();
    }
  }
  for (const pid_t pid : end_descendants(std::chrono::steady_clock::now() + kEndDeadline)) {
    log_warning("process ", pid, " does not end: it waits inside the kernel, see /proc/", pid, "/stack");
  }
}

// ---- starting -----------------------------------------------------------------------------------------------------

ChildSpec Supervisor::spec_of(Target who, int number) const {
  ChildSpec spec;
  spec.variables = variables_of(job_.options, job_.plan, who, number);
  if (!is_worker(who)) {
    spec.program = job_.launcher;
    spec.arguments = {"downpour", "server", "--snapshot-interval",
                      std::to_string(seconds(job_.options.snapshot_interval))};
    spec.handed_over = {job_.plan.endpoints.server_fds.at(static_cast<std::size_t>(who.index))};
    return spec;
  }
  spec.program = job_.program;
  spec.arguments = job_.options.program;
  if (who.index == 0) {
    spec.handed_over = {job_.plan.endpoints.master_fd};
  }
  if (job_.options.gdb == who.index) {
    spec.program = job_.debugger;
    spec.arguments.insert(spec.arguments.begin(), {"gdb", "--args"});
    spec.session = Session::kTerminal;
  }
  return spec;
}

Fd Supervisor::make_stream(const Life& life, Channel channel) {
  int ends[2];
  DOWNPOUR_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "cannot start ", to_text(life.who), ": pipe: ", std::strerror(errno));
  Fd reading(ends[0]);
  Fd writing(ends[1]);
  const RunOptions& options = job_.options;
  const bool single = options.workers + options.servers == 1;
  const Prefix prefix(options.prefix.value_or(single ? "" : "[{role} {rank}] "));
  const bool logged = options.tee.contains(life.who) || options.redirect.contains(life.who);
  job_.output.add(std::move(reading),
                  {.who = life.who,
                   .life = life.number,
                   .channel = channel,
                   .prefix = prefix.of(life.who, host_name()),
                   .shown = options.filter.contains(life.who) && !options.redirect.contains(life.who),
                   .log = logged ? log_file(job_.log_folder, life.who, life.number, channel) : ""});
  return writing;
}

void Supervisor::connect_streams(const Life& life, ChildSpec& spec, std::vector<Fd>& kept) {
  if (spec.session == Session::kTerminal) {
    return;
  }
  const auto place = [&](Fd fd) { return kept.emplace_back(std::move(fd)).get(); };
  spec.standard_output = place(make_stream(life, Channel::kOut));
  spec.standard_error = place(make_stream(life, Channel::kError));
  // Data on our standard input is meant for the program; a terminal belongs to the user, who talks to the launcher.
  if (life.who != worker(0) || ::isatty(STDIN_FILENO) == 1 || job_.options.gdb) {
    spec.standard_input = place(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  }
}

void Supervisor::start(Target who, int number) {
  Process& process = processes_[who];
  process.life = {.who = who, .number = number, .started = clock_.now()};
  const bool logged = job_.options.tee.contains(who) || job_.options.redirect.contains(who);
  process.life.log = logged ? log_file(job_.log_folder, who, number, Channel::kError).string() : "";
  try {
    ChildSpec spec = spec_of(who, number);
    std::vector<Fd> kept;
    connect_streams(process.life, spec, kept);
    process.child = Child::spawn(spec);
  } catch (const Error& error) {
    if (!begun_) {
      throw;
    }
    start_failed(process.life, error.what());
    return;
  }
  process.life.pid = process.child->pid();
  loop_.watch(process.child->pidfd(), EPOLLIN, [this, who](std::uint32_t) { on_child_event(who); });
  job_.journal.started(process.life);
}

// A start that worked before and does not now counts as an end; from the loop, as decisions are being carried out.
void Supervisor::start_failed(const Life& life, const std::string& why) {
  log_error(to_text(life.who), ": ", why);
  loop_.post([this, who = life.who] {
    const auto status = ExitStatus{.code = kCannotStart};
    processes_.at(who).life.ended = Ended{.status = status};
    carry_out(policy_.exited(who, status, Finished::kNo, clock_.now()));
  });
}

// ---- ends and signals ---------------------------------------------------------------------------------------------

// What the process had sent before it ended may wait in the sockets that are ready in the same turn: it comes first.
void Supervisor::on_child_event(Target who) {
  loop_.unwatch(processes_.at(who).child->pidfd());
  loop_.post([this, who] { reap(who); });
}

// Whoever traces the process (strace -p, gdb -p) is told of its end first; until then there is nothing to reap.
void Supervisor::reap(Target who) {
  Process& process = processes_.at(who);
  if (!process.child) {
    return;
  }
  process.life.ended = process.child->reap();
  if (process.life.ended) {
    ended(process);
  } else {
    loop_.call_at(clock_.now() + kReapAgain, [this, who] { reap(who); });
  }
}

void Supervisor::ended(Process& process) {
  process.child.reset();
  if (job_.options.gdb == process.life.who.index && is_worker(process.life.who) && ::isatty(STDIN_FILENO) == 1) {
    ::tcsetpgrp(STDIN_FILENO, ::getpgrp());
  }
  job_.journal.ended(process.life);
  coordinator_->process_ended(process.life.who);
  if (is_worker(process.life.who) && process.life.ended->status.success()) {
    coordinator_->gone(process.life.who.index);
  }
  const Finished finished = coordinator_->membership().finished() ? Finished::kYes : Finished::kNo;
  carry_out(
      policy_.exited(process.life.who, process.life.ended->status, finished, clock_.now(), hopeless(process.life)));
}

// Why the same program would fail again in the same way.
std::string Supervisor::hopeless(const Life& life) const {
  if (!is_worker(life.who)) {
    return life.ended->status.code == kHopelessCode ? "it cannot use what it found; its own last lines say what to do"
                                                    : "";
  }
  // An exception that nobody caught ends a program by SIGABRT; other signals say nothing about the refusal.
  const int signal = life.ended->status.signal;
  return signal == 0 || signal == SIGABRT ? coordinator_->membership().refused(life.who.index) : "";
}

bool Supervisor::owns(pid_t pid) const {
  for (const auto& [who, process] : processes_) {
    if (process.child && process.child->pid() == pid) {
      return true;
    }
  }
  return false;
}

void Supervisor::on_signals() {
  while (const auto number = job_.signals.next()) {
    if (*number == SIGCHLD) {
      reap_adopted([this](pid_t pid) { return !owns(pid); });
    }
  }
}

void Supervisor::on_keeper() {
  const Keeper::Heard heard = job_.keeper.next();
  if (heard.dead) {
    // Nobody is left who would want an answer.
    end_descendants(std::chrono::steady_clock::now() + kEndDeadline);
    ::_exit(128 + SIGKILL);
  }
  if (heard.signal) {
    on_forwarded(*heard.signal);
  }
}

void Supervisor::on_forwarded(int signal) {
  if (ends_job(signal)) {
    interrupted_ = true;
    if (!exit_code_) {
      job_.journal.interrupted(signal, job_.options.grace);
      carry_out(policy_.interrupted(signal, clock_.now()));
    }
  } else if (for_workers(signal)) {
    signal_workers(signal);
  }
}

// SIGUSR2 asks for stacks (csrc/base/stacks.h): it must not end who cannot print any, such as a worker that has not come to its
// optimizer yet, or the shell around one.
void Supervisor::signal_workers(int signal) {
  for (const auto& [who, process] : processes_) {
    if (is_worker(who) && process.child && signal == SIGUSR2) {
      signal_catchers(process.child->pid(), signal);
    } else if (is_worker(who) && process.child) {
      process.child->signal(signal);
    }
  }
}

// ---- decisions ----------------------------------------------------------------------------------------------------

void Supervisor::carry_out(const Decisions& decisions) {
  for (const Decision& decision : decisions) {
    std::visit([this](const auto& one) { carry_out(one); }, decision);
  }
  set_alarm();
}

void Supervisor::carry_out(const SendSignal& decision) {
  Process& process = processes_.at(decision.who);
  process.life.killed_by_us |= decision.signal == SIGKILL;
  if (process.child) {
    process.child->signal(decision.signal);
  }
}

void Supervisor::carry_out(const AbortJob& decision) { coordinator_->abort(decision.reason); }

void Supervisor::carry_out(const ReleaseServers&) {
  for (int rank = 0; rank < job_.options.workers; ++rank) {
    coordinator_->gone(rank);
  }
}

void Supervisor::carry_out(const Failed& decision) { job_.journal.failed(decision, processes_.at(decision.who).life); }

void Supervisor::set_alarm() {
  if (alarm_) {
    loop_.cancel(*alarm_);
    alarm_.reset();
  }
  if (const auto when = policy_.deadline()) {
    alarm_ = loop_.call_at(*when, [this] {
      alarm_.reset();
      carry_out(policy_.check(clock_.now()));
    });
  }
}

// ---- what the coordinator sees ------------------------------------------------------------------------------------

void Supervisor::on_progress(int worker, const ps::Progress& progress) {
  job_.journal.progress(worker, progress);
  set_redraw();
  set_report();
}

void Supervisor::set_redraw() {
  if (!job_.draws_progress || redraw_is_set_) {
    return;
  }
  redraw_is_set_ = true;
  loop_.call_at(clock_.now() + kRedrawInterval, [this] {
    redraw_is_set_ = false;
    if (!exit_code_) {
      job_.output.show(progress_lines(job_.journal.scoreboard().workers(clock_.now()), kDrawnLines));
    }
  });
}

void Supervisor::set_report() {
  if (report_is_set_) {
    return;
  }
  report_is_set_ = true;
  loop_.call_at(clock_.now() + (reported_ ? kReportInterval : kFirstReport), [this] {
    reported_ = true;
    report_is_set_ = false;
    if (!exit_code_) {
      job_.journal.report(job_.options.quiet || job_.draws_progress);
    }
  });
}

void Supervisor::on_server_status(const ps::ServerStatus& status) { job_.journal.status(status); }

void Supervisor::on_server_silent(int index) {
  if (const auto at = processes_.find(server(index)); at != processes_.end()) {
    at->second.life.was_silent = true;
  }
  carry_out(policy_.silent(index));
}

void Supervisor::on_note(const std::string& text) { job_.journal.noted(text); }

}  // namespace downpour::launch
