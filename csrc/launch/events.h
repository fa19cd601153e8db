#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "csrc/launch/exit_status.h"
#include "csrc/launch/scoreboard.h"
#include "csrc/launch/summary.h"

namespace downpour::launch {

// The --json stream: one object a line, {"event": ..., "time": ..., ...}, in the order things happened. Threads: one.
class Events {
 public:
  using Write = std::function<void(std::string line)>;  // ends with '\n'
  explicit Events(Write write) : write_(std::move(write)) {}

  void plan(std::string_view text, const Summary& summary);
  void start(Target who, int life, int pid, const std::string& log);
  void ready(Target who, int life);  // first beat: it has joined the job
  void exit(Target who, int life, int pid, const ExitStatus& status);
  void restart(const Failed& failure);  // is to come, after a pause
  void signal(int number);              // for the launcher
  void note(std::string_view text);
  void progress(const std::map<int, WorkerScore>& workers);
  void end(const Summary& summary);

 private:
  Write write_;
};

}  // namespace downpour::launch
