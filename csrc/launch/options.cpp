#include "csrc/launch/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "csrc/base/version.h"
#include "csrc/launch/prefix.h"
#include "csrc/ps/membership.h"
#include "csrc/transport/address.h"

namespace downpour::launch {
namespace {

constexpr int kLargestCount = 4096;
constexpr int kLargestPort = 65535;
constexpr int kLargestSeconds = 1'000'000;
constexpr Duration kHeartbeat = ps::MembershipOptions{}.heartbeat;
constexpr Duration kLeastSilence = 2 * kHeartbeat;  // one beat may be late

// CLI::Range lets NaN through, which compares with nothing.
Duration parse_duration(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (!number || !std::isfinite(value) || value < 0 || value > kLargestSeconds) {
    throw CLI::ValidationError(
        name, concat("expected a number of seconds from 0 to ", kLargestSeconds, ", found '", text, "'"));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

CLI::Option* add_duration(CLI::App& app, const std::string& name, Duration& into, const std::string& help) {
  const auto set = [&into, name](const std::string& text) { into = parse_duration(name, text); };
  return app.add_option_function<std::string>(name, set, concat(help, " [", seconds(into), "]"))->type_name("SECONDS");
}

// A process that is heard from once a heartbeat and counts as lost before the next one would never be there.
CLI::Option* add_silence(CLI::App& app, Duration& into) {
  const auto set = [&into](const std::string& text) {
    into = parse_duration("--silence", text);
    if (into < kLeastSilence) {
      throw CLI::ValidationError("--silence",
                                 concat(text, " is too short: expected at least ", seconds(kLeastSilence),
                                        " s, since processes are heard from every ", seconds(kHeartbeat), " s"));
    }
  };
  const std::string help = concat("a process not heard from for so long counts as lost; at least ",
                                  seconds(kLeastSilence), " [", seconds(into), "]");
  return app.add_option_function<std::string>("--silence", set, help)->type_name("SECONDS");
}

CLI::Option* add_selection(CLI::App& app, const std::string& name, Selection& into, const std::string& help) {
  const auto set = [name, &into](const std::string& text) {
    try {
      into = Selection::parse(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return app.add_option_function<std::string>(name, set, help)->type_name("WHO");
}

void add_restart_options(CLI::App& app, RunOptions& options) {
  const auto both = [&options](const int& value) { options.worker_restarts = options.server_restarts = value; };
  app.add_option_function<int>("--max-restarts", both,
                               "restarts allowed to each process; without servers, to all workers together [3]")
      ->trigger_on_parse()
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--max-worker-restarts", options.worker_restarts, "the same for workers only")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--max-server-restarts", options.server_restarts, "the same for servers only")
      ->check(CLI::Range(0, 1'000'000));
  add_duration(
      app, "--grace", options.grace,
      "from the first signal to SIGKILL; with servers, workers get two thirds of it, so that servers can save");
  add_silence(app, options.silence);
  add_duration(app, "--snapshot-interval", options.snapshot_interval, "between two snapshots of a server");
}

void add_output_options(CLI::App& app, RunOptions& options) {
  app.add_option("--run-folder", options.run_folder,
                 "snapshots, logs and summary [a fresh folder, removed after success]");
  app.add_flag("--keep", options.keep, "keep the run folder after success too");
  app.add_option("--json", options.json, "write events as JSON lines to a file, or to standard output with -")
      ->type_name("FILE");
  app.add_option("--log-dir", options.log_folder, "where logs go [logs in the run folder]");
  add_selection(app, "--tee", options.tee,
                "print and log the output of these: all, none, workers, servers, 0-3, server:0 [all]");
  add_selection(app, "--redirect", options.redirect, "only log the output of these [none]");
  add_selection(app, "--filter", options.filter, "print the output of these only [all]");
  app.add_option("--prefix", options.prefix, "before each line; {role} {rank} {host} {time} are filled in")
      ->type_name("TEMPLATE");
  app.add_flag("-q,--quiet", options.quiet, "print neither plan nor progress nor summary");
}

void add_machine_options(CLI::App& app, RunOptions& options) {
  app.add_option("--threads", options.threads, "threads of each worker [cores / workers]")
      ->check(CLI::Range(1, kLargestCount));
  app.add_option("-x,--env", options.variables, "set a variable for all processes; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME[=VALUE]");
  app.add_option("--gdb", options.gdb, "start this rank under gdb on the terminal; switches deadlines off")
      ->type_name("RANK")
      ->check(CLI::Range(0, kLargestCount - 1));
  app.add_option("--address", options.address, "where the launcher's sockets are bound [127.0.0.1]")->type_name("IP");
  app.add_option("--port", options.port, "use this port and those after it [0: chosen by the system]")
      ->check(CLI::Range(0, kLargestPort));
  app.add_flag("--insecure", options.insecure, "allow an address off loopback although nothing is encrypted");
}

CLI::App* add_run(CLI::App& app, RunOptions& options) {
  CLI::App* run = app.add_subcommand("run", "start a job: servers, workers, restarts, output");
  run->footer("After the options: -- program [arguments]");
  run->add_option("-w,--workers", options.workers, "processes that run the program [1]")
      ->check(CLI::Range(1, kLargestCount));
  run->add_option("-s,--servers", options.servers, "parameter servers [0]")->check(CLI::Range(0, kLargestCount));
  add_restart_options(*run, options);
  add_output_options(*run, options);
  add_machine_options(*run, options);
  return run;
}

std::uint64_t parse_job(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) {
    throw CLI::ValidationError(
        "--job", concat("'", text, "' is not 1 to 16 hexadecimal digits; take those that server 0 printed"));
  }
  return value;
}

CLI::App* add_serve(CLI::App& app, ServeOptions& options) {
  CLI::App* serve = app.add_subcommand("serve", "run one parameter server by hand");
  serve->add_option("--index", options.index, "which server this is; server 0 hosts the coordinator [0]")
      ->check(CLI::Range(0, kLargestCount - 1));
  serve->add_option("--servers", options.servers, "servers in the job [1]")->check(CLI::Range(1, kLargestCount));
  serve->add_option("--workers", options.workers, "workers in the job [1]")->check(CLI::Range(1, kLargestCount));
  serve->add_option("--address", options.address, "where workers reach this server [127.0.0.1:0]")
      ->type_name("HOST:PORT");
  serve->add_option("--coordinator", options.coordinator, "server 0: where to host it; others: what server 0 printed")
      ->type_name("HOST:PORT");
  serve->add_option("--endpoints", options.endpoints, "server 0: the addresses of all servers, by index")
      ->delimiter(',')
      ->type_name("HOST:PORT,...");
  serve
      ->add_option_function<std::string>(
          "--job", [&options](const std::string& text) { options.job = parse_job(text); },
          "the job's number, as server 0 printed it")
      ->type_name("HEX");
  serve->add_option("--run-folder", options.run_folder, "for snapshots [none are written]");
  add_duration(*serve, "--snapshot-interval", options.snapshot_interval, "between two snapshots");
  add_silence(*serve, options.silence);
  serve->add_flag("--insecure", options.insecure, "allow an address off loopback although nothing is encrypted");
  return serve;
}

CLI::App* add_server(CLI::App& app, ServerOptions& options) {
  CLI::App* server = app.add_subcommand("server", "a server of `downpour run`, which starts it")->group("");
  add_duration(*server, "--snapshot-interval", options.snapshot_interval, "between two snapshots");
  return server;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* doctor = app.add_subcommand("doctor", "check whether this machine can run jobs");
  doctor->add_option("program", options.program, "also check that its libraries are found, without running it");
  doctor->add_option("--run-folder", options.folder, "the folder whose disk is tried [the temporary folder]");
  return doctor;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({changed, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

// The known flag that looks most like `flag`, or nothing when none does.
std::string nearest_flag(const CLI::App& app, const std::string& flag) {
  std::string best;
  std::size_t distance = 4;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::size_t here = edit_distance(flag.substr(0, flag.find('=')), "--" + name);
      best = here < distance ? "--" + name : best;
      distance = std::min(distance, here);
    }
  }
  return best;
}

Answer usage_error(const std::string& command, const std::string& what) {
  return {concat("downpour ", command, ": ", what, "\n"), kUsageError};
}

Answer unknown_word(const CLI::App& command, const std::string& word) {
  if (!word.starts_with("-")) {
    return usage_error(command.get_name(),
                       concat("'", word, "' was not expected here; a program and its arguments go after --: ",
                              "downpour run [options] -- ", word, " ..."));
  }
  const std::string nearest = nearest_flag(command, word);
  return usage_error(command.get_name(),
                     concat("unknown flag ", word, nearest.empty() ? "" : concat("; did you mean ", nearest, "?"),
                            " All flags: downpour ", command.get_name(), " --help"));
}

bool has_name(const std::string& variable) { return !variable.empty() && !variable.starts_with('='); }

std::optional<Answer> check_run(const RunOptions& options) {
  if (options.program.empty()) {
    return usage_error("run", "no program given; write it after --: downpour run [options] -- program [arguments]");
  }
  if (options.gdb && *options.gdb >= options.workers) {
    return usage_error("run",
                       concat("--gdb ", *options.gdb, ": there is no such rank; --workers is ", options.workers));
  }
  const int last_port = options.port + 1 + options.servers;
  if (options.port != 0 && last_port > kLargestPort) {
    return usage_error("run",
                       concat("--port ", options.port, ": the last port would be ", last_port, "; choose a lower one"));
  }
  if (const auto bad = std::ranges::find_if_not(options.variables, has_name); bad != options.variables.end()) {
    return usage_error("run", concat("--env '", *bad, "': expected NAME or NAME=VALUE"));
  }
  try {
    Prefix{options.prefix.value_or("")};
  } catch (const Error& error) {
    return usage_error("run", error.what());
  }
  return std::nullopt;
}

int port_of(const std::string& endpoint) {
  try {
    return transport::parse_address(endpoint).port;
  } catch (const Error& error) {
    throw CLI::ValidationError(concat("--endpoints ", endpoint), error.what());
  }
}

// What server 0 would tell the workers. Each address stands for one server, and is told as it stands.
std::optional<Answer> check_endpoints(const ServeOptions& options) {
  const auto& endpoints = options.endpoints;
  if (endpoints.size() != static_cast<std::size_t>(options.servers)) {
    return usage_error(
        "serve", concat("--endpoints: server 0 tells the workers where the servers are; expected ", options.servers,
                        options.servers == 1 ? " address" : " addresses", ", found ", endpoints.size()));
  }
  for (auto endpoint = endpoints.begin(); endpoint != endpoints.end(); ++endpoint) {
    if (const auto same = std::find(endpoints.begin(), endpoint, *endpoint); same != endpoint) {
      return usage_error("serve", concat("--endpoints: servers ", same - endpoints.begin(), " and ",
                                         endpoint - endpoints.begin(), " cannot both be at ", *endpoint));
    }
    if (port_of(*endpoint) == 0) {
      return usage_error("serve", concat("--endpoints ", *endpoint, ": workers cannot connect to port 0; give server ",
                                         endpoint - endpoints.begin(), " a port, and its --address the same"));
    }
  }
  return std::nullopt;
}

std::optional<Answer> check_serve(const ServeOptions& options) {
  if (options.index >= options.servers) {
    return usage_error("serve",
                       concat("--index ", options.index, ": there is no such server; --servers is ", options.servers));
  }
  if (options.index == 0 && (options.servers > 1 || !options.endpoints.empty())) {
    if (const auto mistake = check_endpoints(options)) {
      return mistake;
    }
  }
  if (options.index > 0 && options.coordinator.empty()) {
    return usage_error("serve", "--coordinator is missing: start server 0 first, it prints the flags for the others");
  }
  if (options.index > 0 && options.job == 0) {
    return usage_error("serve", "--job is missing: start server 0 first, it prints the flags for the others");
  }
  return std::nullopt;
}

struct Parsed {
  RunOptions run;
  ServeOptions serve;
  ServerOptions server;
  DoctorOptions doctor;
};

Command chosen(const CLI::App& app, const Parsed& parsed) {
  const std::string name = app.get_subcommands().front()->get_name();
  if (name != "run" && !parsed.run.program.empty()) {
    return usage_error(name, concat("it runs no program, found '", parsed.run.program.front(), "' after --"));
  }
  if (name == "run") {
    const auto mistake = check_run(parsed.run);
    return mistake ? Command(*mistake) : Command(parsed.run);
  }
  if (name == "serve") {
    const auto mistake = check_serve(parsed.serve);
    return mistake ? Command(*mistake) : Command(parsed.serve);
  }
  return name == "server" ? Command(parsed.server) : Command(parsed.doctor);
}

Answer answer_to(const CLI::App& app, const CLI::ParseError& error) {
  const auto commands = app.get_subcommands();
  if (error.get_exit_code() == 0) {
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    return {version ? concat("downpour ", kVersion, "\n") : app.help(), 0};
  }
  const auto words = app.remaining(true);
  if (commands.empty()) {
    const std::string what = words.empty() ? "no command given" : concat("'", words.front(), "' is no command");
    return {concat("downpour: ", what, "; expected run, serve or doctor; see downpour --help\n"), kUsageError};
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !words.empty()) {
    return unknown_word(*commands.front(), words.front());
  }
  const std::string name = commands.front()->get_name();
  return usage_error(name, concat(error.what(), "; all flags: downpour ", name, " --help"));
}

}  // namespace

Command parse_command(const std::vector<std::string>& arguments) {
  CLI::App app("Distributed training for LibTorch programs in C++");
  app.name("downpour");
  app.set_version_flag("--version", std::string(kVersion));
  Parsed parsed;
  add_run(app, parsed.run);
  add_serve(app, parsed.serve);
  add_server(app, parsed.server);
  add_doctor(app, parsed.doctor);
  app.require_subcommand(1);

  // What follows the first -- belongs to the user's program, whatever it looks like.
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), dashes);
  if (dashes != arguments.end()) {
    parsed.run.program.assign(dashes + 1, arguments.end());
  }
  std::reverse(own.begin(), own.end());
  try {
    app.parse(own);
    return chosen(app, parsed);
  } catch (const CLI::ParseError& error) {
    return answer_to(app, error);
  }
}

}  // namespace downpour::launch
