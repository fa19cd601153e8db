#include "csrc/launch/run.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/random.h"
#include "csrc/launch/job_sockets.h"
#include "csrc/launch/logging.h"
#include "csrc/launch/machine.h"
#include "csrc/launch/run_folder.h"
#include "csrc/launch/sink.h"
#include "csrc/launch/supervisor.h"

namespace downpour::launch {
namespace {

// What the checks before the first process, file or socket have found out.
struct Checked {
  std::string program;
  std::string launcher;
  std::string debugger;
  Variables user;  // user_variables()
};

std::string checked_program(const RunOptions& options, const Variables& variables) {
  const auto program = find_program(options.program.front(), variables);
  DOWNPOUR_CHECK(program, "program '", options.program.front(), "' was not found",
                 options.program.front().find('/') == std::string::npos
                     ? " in PATH; for one in this folder write ./" + options.program.front()
                     : " or is not executable (chmod +x)");
  return *program;
}

std::string checked_debugger(const RunOptions& options, const Variables& variables) {
  const auto program = find_program("gdb", variables);
  DOWNPOUR_CHECK(!options.gdb || program, "--gdb: gdb was not found in PATH; on Debian: apt-get install gdb");
  return program.value_or("");
}

Fd open_events(const std::string& json) {
  if (json.empty() || json == "-") {
    return {};
  }
  Fd file(::open(json.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  DOWNPOUR_CHECK(file, "--json ", json, ": ", std::strerror(errno));
  return file;
}

bool draws_progress(const RunOptions& options, const Variables& variables) {
  return !options.quiet && !options.gdb && ::isatty(STDERR_FILENO) == 1 &&
         variables.get("TERM").value_or("dumb") != "dumb";
}

bool same_file(int a, int b) {
  struct stat one {};
  struct stat other {};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

OutputOptions output_options(const RunOptions& options, const Variables& variables, const Fd& events) {
  OutputOptions result;
  // The event stream has standard output to itself.
  result.out = options.json == "-" ? STDERR_FILENO : STDOUT_FILENO;
  result.events = options.json == "-" ? STDOUT_FILENO : events.get();
  result.area = draws_progress(options, variables);
  result.area_below_out = result.area && same_file(result.out, STDERR_FILENO);
  return result;
}

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  Sink sink(std::move(file));
  if (!sink.write(to_json(summary))) {
    log_warning("cannot write ", path.string(), ": ", sink.why().empty() ? std::strerror(errno) : sink.why());
  }
}

// Everything of a job but its program: made by the working process, in this order.
class Run {
 public:
  Run(const RunOptions& options, Checked checked);
  int operator()();

 private:
  Plan make_plan() const;
  Summary first_summary() const;
  std::filesystem::path make_log_folder() const;
  bool worth_keeping(const Summary& summary) const;
  int close(Supervisor& supervisor, int exit_code);

  const RunOptions& options_;
  Checked checked_;
  Keeper keeper_ = split_off_keeper();
  Signals signals_;
  JobSockets sockets_;
  Fd events_;
  RunFolder folder_;
  Plan plan_;
  bool draws_progress_;
  std::filesystem::path log_folder_;
  SteadyClock clock_;
  Output output_;
  Logging logging_{output_};
  Journal journal_;
};

Run::Run(const RunOptions& options, Checked checked)
    : options_(options),
      checked_(std::move(checked)),
      sockets_(bind_sockets(options)),
      events_(open_events(options.json)),
      folder_(options.run_folder, checked_.user.get("TMPDIR").value_or("/tmp")),
      plan_(make_plan()),
      draws_progress_(draws_progress(options, checked_.user)),
      log_folder_(make_log_folder()),
      output_(output_options(options, checked_.user, events_)),
      journal_(first_summary(), output_, clock_) {
  if (options_.servers > 0) {
    folder_.check_snapshots();
  }
}

Plan Run::make_plan() const {
  Plan plan;
  plan.job = system_random();
  plan.run_folder = folder_.path().string();
  plan.endpoints = sockets_.endpoints();
  plan.user = checked_.user;
  plan_threads(options_, usable_cores(), plan);
  return plan;
}

Summary Run::first_summary() const {
  Summary summary;
  summary.workers = options_.workers;
  summary.servers = options_.servers;
  summary.started = std::chrono::system_clock::now();
  summary.run_folder = plan_.run_folder;
  return summary;
}

std::filesystem::path Run::make_log_folder() const {
  if (options_.tee == Selection::none() && options_.redirect == Selection::none()) {
    return {};
  }
  const auto folder =
      options_.log_folder.empty() ? folder_.path() / "logs" : std::filesystem::absolute(options_.log_folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  DOWNPOUR_CHECK(!error, "--log-dir ", folder.string(), ": ", error.message());
  return folder;
}

int Run::operator()() {
  journal_.planned(to_text(options_, plan_), options_.quiet);
  if (options_.insecure && options_.quiet) {
    log_warning(kInsecureText);
  }
  Supervisor supervisor({.options = options_,
                         .plan = plan_,
                         .sockets = sockets_,
                         .keeper = keeper_,
                         .signals = signals_,
                         .output = output_,
                         .journal = journal_,
                         .program = checked_.program,
                         .launcher = checked_.launcher,
                         .debugger = checked_.debugger,
                         .log_folder = log_folder_,
                         .draws_progress = draws_progress_});
  const int exit_code = supervisor.run();
  return close(supervisor, exit_code);
}

// A fresh folder stays for the logs of what failed, and for what a job that was interrupted had learnt so far.
bool Run::worth_keeping(const Summary& summary) const {
  std::error_code ignored;
  const bool snapshots =
      std::filesystem::exists(folder_.snapshots(), ignored) && !std::filesystem::is_empty(folder_.snapshots(), ignored);
  return folder_.kept() || options_.keep || !summary.failures.empty() ||
         (summary.exit_code != 0 && (snapshots || summary.ended_by.empty()));
}

int Run::close(Supervisor& supervisor, int exit_code) {
  if (!supervisor.flush_output()) {
    ::_exit(exit_code);
  }
  Summary& summary = journal_.close(exit_code, output_);
  if (worth_keeping(summary)) {
    folder_.keep();
    write_summary(folder_.summary(), summary);
  } else {
    summary.run_folder.clear();
  }
  journal_.tell(options_.quiet);
  if (!supervisor.flush_output()) {
    ::_exit(exit_code);
  }
  return exit_code;
}

}  // namespace

int run_job(const RunOptions& options, const Variables& variables, const std::string& launcher) {
  try {
    Run run(options, {.program = checked_program(options, variables),
                      .launcher = launcher,
                      .debugger = checked_debugger(options, variables),
                      .user = user_variables(options, variables)});
    return run();
  } catch (const Error& error) {
    std::cerr << "downpour run: " << error.what() << "\n";
    return kUsageError;
  }
}

}  // namespace downpour::launch
