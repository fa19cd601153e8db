#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/launch/prefix.h"
#include "csrc/launch/target_text.h"

namespace downpour::launch {

enum class Channel { kOut, kError };

struct StreamOptions {
  Target who;
  int life = 0;
  Channel channel = Channel::kOut;
  Prefix prefix{};              // complete but for {time}
  bool shown = true;            // on our own channel
  std::filesystem::path log{};  // every byte goes there too, as it came; empty: nowhere
};

struct OutputOptions {
  int out = 1;
  int error = 2;
  int events = -1;              // where event lines go; -1: nowhere
  bool area = false;            // `error` is a terminal that may be drawn on
  bool area_below_out = false;  // and `out` is that terminal too
};

// What the processes of the job print, what we print, and the progress lines below: everything that is written to the
// terminal or to log files goes through the one thread of this class, in whole lines.
// A slow reader slows the writers down and loses nothing: while a write waits, nothing is read from the processes.
// A reader that went away (`| head`) is no error: what follows is dropped there, logs go on.
// Threads: any, none blocks; the callback of finish() runs on the output's thread.
class Output {
 public:
  explicit Output(const OutputOptions& options);
  ~Output();  // blocks until everything is written
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Reads `pipe` until its end. A log that cannot be written is reported once and given up.
  void add(Fd pipe, StreamOptions options);
  void say(std::string text);                 // whole lines of ours, to `error`
  void event(std::string line);               // to `events`
  void show(std::vector<std::string> lines);  // replaces the progress lines; the latest wins while a write waits
  // Every writer has ended: takes what is left in the pipes, erases the progress lines, then calls `done`.
  void finish(std::function<void()> done);
  // The last lines of the standard error of that process, oldest first. After `done` only.
  std::vector<std::string> last_errors(Target who, int life, std::size_t count) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace downpour::launch
