#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

// `downpour run` as a test starts it.
namespace downpour::testing {

enum class Screen { kNone, kTerminal };  // what the launcher's output goes to: a pipe, or a terminal

// A launcher with everything it started; killed, if it has not ended, when this dies. Waits end after two minutes.
class JobRun {
 public:
  // Runs tests/optimizers/programs/<program> with `arguments` under `options` of `downpour run`.
  JobRun(const std::vector<std::string>& options, const std::string& program, const std::vector<std::string>& arguments,
         Screen screen = Screen::kNone);
  ~JobRun();
  JobRun(const JobRun&) = delete;
  JobRun& operator=(const JobRun&) = delete;

  void signal(int number) const;           // to the launcher alone
  bool wait_for(const std::string& text);  // until the output, both channels together, contains it
  int wait();                              // the launcher's exit code; -1 when killed or out of patience
  const std::string& output() const { return output_; }
  // A server's process, found among the launcher's descendants; -1: none is there.
  pid_t a_server() const;
  // What follows `word` on each line that contains it.
  std::vector<std::string> after(const std::string& word) const;

 private:
  bool read_some();

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
};

}  // namespace downpour::testing
