#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "csrc/launch/restart_policy.h"
#include "csrc/launch/scoreboard.h"
#include "csrc/launch/wall_clock.h"

// What a job leaves behind for people (text) and programs (JSON). Pure.
namespace downpour::launch {

struct FailureRecord {
  Target who;
  int life = 0;
  int pid = 0;
  std::string host;
  WallTime when;
  Duration after{};  // since its own start
  ExitStatus status;
  Failed::Consequence consequence = Failed::Consequence::kNone;
  std::int64_t peak_memory_bytes = 0;
  std::string hint;                      // what probably happened; empty: the status says all
  std::vector<std::string> last_errors;  // last lines of its standard error
  std::vector<std::string> digest;       // what the text shows: its last few lines but for stack frames
  std::string log;                       // path; empty: none was written
};

struct Summary {
  int workers = 1;
  int servers = 0;
  int exit_code = 0;
  std::string ended_by;  // a signal for the launcher; empty: none
  WallTime started;
  Duration elapsed{};
  Totals totals;
  std::map<Target, int> restarts;       // only those that were restarted
  std::vector<FailureRecord> failures;  // in the order they happened
  std::vector<Target> cut_off;          // servers killed before they had written their last snapshot
  std::string run_folder;               // empty: removed
};

// The failure that the job ended with, or nullptr.
const FailureRecord* cause(const Summary& summary);

// Empty when there is nothing to say: a success without progress, restarts, failures or servers cut off.
std::string to_text(const Summary& summary);
std::string to_json(const Summary& summary);

}  // namespace downpour::launch
