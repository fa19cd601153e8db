#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/launch/exit_status.h"
#include "csrc/launch/target_text.h"

// What the launcher does about every end of a process, every signal and every passed deadline: pure decisions, no process,
// no clock of its own. The supervisor (supervisor.h) carries them out.
namespace downpour::launch {

struct PolicyOptions {
  int workers = 1;
  int servers = 0;
  int worker_restarts = 3;                    // of each worker; without servers: of all workers together
  int server_restarts = 3;                    // of each server
  Duration grace = std::chrono::seconds(10);  // from the first signal to SIGKILL; workers beside servers: 2/3
  Duration first_pause = std::chrono::milliseconds(50);  // before the first restart; doubles with each one
  Duration largest_pause = std::chrono::seconds(10);
  Duration closing = std::chrono::seconds(60);  // after success: for servers to write their last snapshot, all of it
  Duration give_up = std::chrono::seconds(10);  // after SIGKILL: a process in the kernel's hands is left behind
};

// Whether the coordinator has told the servers to end, since every worker has finished or is gone.
enum class Finished { kNo, kYes };

// Decisions, in order.
struct StartProcess {
  Target who;
  int life;
};
struct SendSignal {
  Target who;
  int signal;
};
struct NewRound {
  int round;
};  // without servers: nobody of the former round is alive
struct AbortJob {
  std::string reason;
};                         // for the members that are still connected
struct ReleaseServers {};  // no worker will come again: they save and end by themselves
struct Failed {
  // kHarmless: a server, once every worker has finished. kNone: followed from an earlier failure.
  enum class Consequence { kRestart, kEndsJob, kHarmless, kNone };
  // kEndsJob: why it is not started again.
  enum class NoRestart { kNoneLeft, kHopeless, kAllFinished, kOthersStay };
  Target who;
  ExitStatus status{};
  Consequence consequence = Consequence::kNone;
  int restart = 0;  // kRestart: which one, of how many, after which pause
  int allowed = 0;
  Duration pause{};
  NoRestart no_restart = NoRestart::kNoneLeft;
  std::string hopeless = {};  // as told to exited()
};
struct CutOff {
  Target who;
};  // a server that we had to kill before it had ended: its last snapshot is missing
struct EndJob {
  int exit_code;
};
using Decision = std::variant<StartProcess, SendSignal, NewRound, AbortJob, ReleaseServers, Failed, CutOff, EndJob>;
using Decisions = std::vector<Decision>;

// With servers a worker restarts alone; without, any death restarts all. The first failure that is not recovered decides the
// exit code. Threads: one. Every function returns what must be done now; after EndJob nothing follows.
class RestartPolicy {
 public:
  explicit RestartPolicy(const PolicyOptions& options);

  Decisions begin();
  // `hopeless`: why the next life could only fail as this one did; empty: it may do better.
  Decisions exited(Target who, const ExitStatus& status, Finished finished, TimePoint now,
                   const std::string& hopeless = {});
  Decisions silent(int index);  // the coordinator has not heard from that server for too long
  // A signal for the launcher that ends the job; the second one kills at once, as does SIGQUIT.
  Decisions interrupted(int signal, TimePoint now);
  Decisions check(TimePoint now);  // at deadline()
  std::optional<TimePoint> deadline() const;

  int restarts(Target who) const;
  bool ending() const { return phase_ != Phase::kRunning && phase_ != Phase::kRenewing; }

 private:
  enum class Phase { kRunning, kRenewing, kStopping, kClosing, kOver };
  enum class State { kAlive, kWaiting, kEnded, kSucceeded };
  struct Process {
    State state = State::kAlive;
    int restarts = 0;
    int last_signal = 0;  // sent by us to this life
    TimePoint due{};      // kWaiting
  };

  void start(Target who, Process& process, Decisions& out);
  void signal(Target who, int number, Decisions& out);
  void signal_workers(int number, Decisions& out);
  void failed(Target who, Process& process, Failed failure, Finished finished, TimePoint now, Decisions& out);
  void end_with(Failed failure, TimePoint now, Decisions& out);
  void follow(Target who, const Process& process, const ExitStatus& status, Decisions& out) const;
  void renew(TimePoint now, Decisions& out);
  void stop(int exit_code, TimePoint now);
  void close(TimePoint now);
  Duration worker_grace() const;
  void kill_workers(Decisions& out);
  void kill_now(TimePoint now, Decisions& out);
  void advance(TimePoint now, Decisions& out);  // what follows from the states alone
  void advance_renewal(Decisions& out);
  void advance_ending(Decisions& out);
  void release_servers(Decisions& out);
  void give_up(Decisions& out);
  bool any(Target::Kind kind, State state) const;
  bool all_workers(State state) const;
  Duration pause(int restarts) const;

  PolicyOptions options_;
  std::map<Target, Process> processes_;
  Phase phase_ = Phase::kRunning;
  int round_ = 0;
  Failed round_failure_;  // kRenewing: why
  TimePoint round_due_{};
  int exit_code_ = 0;
  bool interrupted_ = false;
  bool released_ = false;
  bool killed_ = false;
  std::optional<TimePoint> terminate_at_;  // SIGTERM to the workers; it would only cut a server's last snapshot short
  std::optional<TimePoint> kill_workers_at_;  // SIGKILL, and the servers are released
  std::optional<TimePoint> kill_at_;          // SIGKILL to all
  std::optional<TimePoint> give_up_at_;
};

}  // namespace downpour::launch
