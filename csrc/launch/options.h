#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/launch/selection.h"

// The command line: what it says, checked. Pure.
namespace downpour::launch {

struct RunOptions {
  int workers = 1;
  int servers = 0;
  int worker_restarts = 3;
  int server_restarts = 3;
  Duration grace = std::chrono::seconds(10);
  std::filesystem::path run_folder;        // empty: a fresh one, removed after success
  bool keep = false;                       // not even then
  std::string json;                        // events: a file, "-" for standard output, empty for none
  std::filesystem::path log_folder;        // empty: logs/ in the run folder
  Selection tee = Selection::all();        // printed and logged
  Selection redirect = Selection::none();  // logged only
  Selection filter = Selection::all();     // printed at all
  std::optional<std::string> prefix;       // nullopt: chosen by the number of processes
  int threads = 0;                         // per worker; 0: cores / workers
  std::string address = "127.0.0.1";       // where the launcher's sockets are bound
  int port = 0;                            // first of those used; 0: the system chooses
  bool insecure = false;
  std::optional<int> gdb;                       // this rank runs under a debugger on the terminal
  std::vector<std::string> variables;           // -x: NAME or NAME=VALUE
  Duration silence = std::chrono::seconds(10);  // after which a member counts as lost
  Duration snapshot_interval = std::chrono::seconds(30);
  bool quiet = false;                // neither plan nor progress nor summary
  std::vector<std::string> program;  // after --
};

// One server of a job without a launcher.
struct ServeOptions {
  int index = 0;
  int servers = 1;
  int workers = 1;
  std::string address = "127.0.0.1:0";
  std::string coordinator;             // server 0: where it listens (empty: chosen); others: server 0's
  std::vector<std::string> endpoints;  // server 0: where all servers listen, by index
  std::uint64_t job = 0;               // 0: server 0 draws one
  std::filesystem::path run_folder;    // empty: no snapshots
  Duration snapshot_interval = std::chrono::seconds(30);
  Duration silence = std::chrono::seconds(10);
  bool insecure = false;
};

// A server that the launcher starts; the rest it reads from its environment.
struct ServerOptions {
  Duration snapshot_interval = std::chrono::seconds(30);
};

struct DoctorOptions {
  std::string program;           // whose libraries are looked at; empty: none
  std::filesystem::path folder;  // whose disk is tried; empty: the temporary folder
};

// Nothing to run: text for standard output (exit code 0) or standard error.
struct Answer {
  std::string text;
  int exit_code = 0;
};

using Command = std::variant<RunOptions, ServeOptions, ServerOptions, DoctorOptions, Answer>;

// What --insecure means, said whenever it is used, also under --quiet.
constexpr const char* kInsecureText = "INSECURE: sockets may be off loopback, without keys or encryption";

constexpr int kUsageError = 2;  // exit code of a mistake on the command line

// A mistake becomes an Answer with kUsageError that names the flag and the fix. `arguments` without the program's own name.
Command parse_command(const std::vector<std::string>& arguments);

}  // namespace downpour::launch
