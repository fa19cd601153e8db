#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/fd.h"
#include "csrc/launch/child.h"
#include "csrc/launch/run_folder.h"

namespace downpour::launch {

// Whether the launcher's three standard descriptors are pipes or one terminal.
enum class Stage { kPipes, kTerminal };

// The real program `downpour`, started by a test. Whatever the test does, everything that was started is dead when this dies.
// Every wait ends in a test failure after kPatience.
class Launched {
 public:
  explicit Launched(std::vector<std::string> arguments, Stage stage = Stage::kPipes,
                    std::vector<std::string> variables = {});
  ~Launched();

  pid_t pid() const { return child_->pid(); }
  void signal(int number) const;             // to the launcher alone
  void signal_group(int number) const;       // as a terminal does it
  void type(const std::string& text) const;  // on the terminal
  // Reads until `text` has appeared `times` times, on either channel.
  void wait_for(const std::string& text, int times = 1);
  // Reads what comes next; false at the end of both channels, or out of patience.
  bool read_some();
  // Reads what comes until then; false at the end of both channels.
  bool read_for(Duration time);
  // Reads to the end. The launcher's exit code as a shell sees it; -1 when it did not come in time.
  int wait();
  const std::string& out() const { return out_; }  // a terminal has only this one
  const std::string& err() const { return err_; }

  // What the launcher and its descendants have in common, whoever their parent is now: a variable of their environment.
  std::vector<pid_t> alive() const;
  // Waits until nobody is alive any more; false when somebody still is.
  bool all_gone() const;
  int working_process() const;  // the launcher's second process

 private:
  void connect_pipes(ChildSpec& spec, std::vector<Fd>& kept);
  void connect_terminal(ChildSpec& spec, std::vector<Fd>& kept);
  bool wait_readable(int timeout_ms);  // reads what is there then; false when nothing came

  RunFolder temporary_;  // TMPDIR of the job
  std::string mark_;
  std::optional<Child> child_;
  Fd out_pipe_;
  Fd err_pipe_;
  std::string out_;
  std::string err_;
  std::optional<int> exit_code_;
};

// `downpour arguments...` to its end.
struct Finish {
  int exit_code = 0;
  std::string out;
  std::string err;
};
Finish launch(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {});

// A FIFO at which a test program waits until the test lets it through.
class Gate {
 public:
  explicit Gate(const std::string& path);  // makes it
  void let_through() const;                // one waiter, now or later

 private:
  Fd fifo_;
};

// What a child writes to its standard output; nobody else holds the other end.
struct Piped {
  Child child;
  Fd output;
};
Piped spawn_piped(ChildSpec spec);

// What comes next there, in one piece; empty at the end.
std::string read_once(const Fd& fd);

// Reading end, writing end.
std::pair<Fd, Fd> make_pipe();

// Waits for its end and reaps it.
Ended wait_for(Child& child);

std::string test_program(const std::string& name);  // of tests/launch/programs
std::string read_file(const std::string& path);     // empty when it is not there

}  // namespace downpour::launch
