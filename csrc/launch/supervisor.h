#pragma once

#include <map>
#include <memory>
#include <string>

#include "csrc/base/clock.h"
#include "csrc/launch/child.h"
#include "csrc/launch/job_sockets.h"
#include "csrc/launch/journal.h"
#include "csrc/launch/keeper.h"
#include "csrc/launch/options.h"
#include "csrc/launch/output.h"
#include "csrc/launch/plan.h"
#include "csrc/launch/restart_policy.h"
#include "csrc/launch/signals.h"
#include "csrc/ps/coordinator.h"
#include "csrc/transport/loop.h"

namespace downpour::launch {

// What a supervisor works with; all of it outlives the supervisor.
struct Job {
  const RunOptions& options;
  const Plan& plan;
  const JobSockets& sockets;
  Keeper& keeper;
  Signals& signals;
  Output& output;
  Journal& journal;
  std::string program;   // the file to start
  std::string launcher;  // our own file, for servers
  std::string debugger;  // the file for --gdb
  std::filesystem::path log_folder;
  bool draws_progress = false;  // progress goes to a terminal, in place
};

// Starts the processes of a job, hears how they end, carries out what the restart policy decides, and hosts the coordinator.
// Threads: the main thread, whose death is also the death of all children.
class Supervisor final : private ps::CoordinatorObserver {
 public:
  explicit Supervisor(Job job);
  ~Supervisor() override;

  // The exit code of the job; nothing that was started is alive when it returns. Blocks: for the job's life.
  // Errors: Error when the first start of a process fails; what had been started is ended.
  int run();
  // Waits until all output is written. False when a signal came meanwhile: nobody reads it.
  bool flush_output();

 private:
  struct Process {
    Life life;
    std::optional<Child> child;  // nullopt: not running
  };

  void open_coordinator();
  void watch_signals();
  void start(Target who, int number);
  ChildSpec spec_of(Target who, int number) const;
  void connect_streams(const Life& life, ChildSpec& spec, std::vector<Fd>& kept);
  Fd make_stream(const Life& life, Channel channel);
  void start_failed(const Life& life, const std::string& why);
  void on_child_event(Target who);
  void reap(Target who);
  void ended(Process& process);
  std::string hopeless(const Life& life) const;
  void on_signals();
  void on_keeper();
  void on_forwarded(int signal);
  void signal_workers(int signal);
  void carry_out(const Decisions& decisions);
  void carry_out(const StartProcess& decision) { start(decision.who, decision.life); }
  void carry_out(const SendSignal& decision);
  void carry_out(const NewRound&) { open_coordinator(); }
  void carry_out(const AbortJob& decision);
  void carry_out(const ReleaseServers&);
  void carry_out(const Failed& decision);
  void carry_out(const CutOff& decision) { job_.journal.cut_off(decision.who); }
  void carry_out(const EndJob& decision) { exit_code_ = decision.exit_code; }
  void set_alarm();
  void set_redraw();
  void set_report();
  void end_everything();
  bool owns(pid_t pid) const;

  void on_progress(int worker, const ps::Progress& progress) override;
  void on_server_status(const ps::ServerStatus& status) override;
  void on_server_silent(int server) override;
  void on_note(const std::string& text) override;

  Job job_;
  SteadyClock clock_;
  transport::Loop loop_{clock_};
  RestartPolicy policy_;
  std::unique_ptr<ps::Coordinator> coordinator_;
  std::unique_ptr<transport::Listener> listener_;
  std::map<Target, Process> processes_;
  std::optional<int> exit_code_;
  bool begun_ = false;
  bool interrupted_ = false;  // by a signal, since run() or flush_output() began
  bool redraw_is_set_ = false;
  bool report_is_set_ = false;
  bool reported_ = false;
  std::optional<transport::Loop::TimerId> alarm_;
};

}  // namespace downpour::launch
