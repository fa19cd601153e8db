#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/launch/child.h"
#include "csrc/launch/events.h"
#include "csrc/launch/machine.h"
#include "csrc/launch/output.h"
#include "csrc/launch/restart_policy.h"
#include "csrc/launch/scoreboard.h"
#include "csrc/launch/summary.h"

namespace downpour::launch {

// One life of a process, from its start to its end.
struct Life {
  Target who;
  int number = 0;
  int pid = 0;
  TimePoint started{};
  std::string log = {};       // of its standard error; empty: none
  bool killed_by_us = false;  // SIGKILL
  bool was_silent = false;    // and that was why
  std::optional<Ended> ended = {};
};

// What happened in a job: told to the user as log lines, to programs as events, and kept for the summary. Decides nothing.
// Threads: one.
class Journal {
 public:
  // `memory`: reads the control group that the job runs in.
  Journal(Summary begun, Output& output, const Clock& clock,
          std::function<std::optional<MemoryGroup>()> memory = memory_group);

  void planned(const std::string& text, bool quiet);
  void started(const Life& life);
  void ended(const Life& life);
  void failed(const Failed& failure, const Life& life);
  void cut_off(Target who);  // a server, killed before it had written its last snapshot
  void interrupted(int signal, Duration grace);
  void noted(const std::string& text);
  void progress(int worker, const ps::Progress& progress);
  void status(const ps::ServerStatus& status);
  void report(bool quiet);  // one line of progress
  // The whole story, once the output has been finished.
  Summary& close(int exit_code, const Output& output);
  void tell(bool quiet);  // it, to the user and the event stream
  const Scoreboard& scoreboard() const { return scoreboard_; }

 private:
  std::string hint(const Failed& failure, const Life& life);
  std::optional<std::string> out_of_memory();
  void ready(Target who);

  Summary summary_;
  Output& output_;
  const Clock& clock_;
  TimePoint begun_;
  Events events_;
  Scoreboard scoreboard_;
  std::map<Target, int> lives_;  // the current one of each
  std::set<std::pair<Target, int>> ready_;
  std::string host_;
  std::function<std::optional<MemoryGroup>()> memory_;
  std::int64_t known_memory_kills_ = 0;
};

}  // namespace downpour::launch
