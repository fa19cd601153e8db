#include "csrc/base/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "csrc/base/error.h"
#include "csrc/base/text.h"

namespace downpour {
namespace {

constexpr double kMostSeconds = 1e9;  // what a Duration holds, and more than anybody waits

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

template <typename T>
T number(const char* name, T fallback, T least, int base = 10) {
  const auto text = variable(name);
  if (!text) {
    return fallback;
  }
  T value{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value, base);
  DOWNPOUR_CHECK(error == std::errc() && end == text->data() + text->size() && value >= least, "environment variable ",
                 name, ": expected a ", base == 16 ? "hexadecimal " : "", "number of at least ", least, ", found '",
                 *text, "'; unset it or start the program with `downpour run`");
  return value;
}

std::optional<Duration> duration(const char* name) {
  const auto text = variable(name);
  if (!text) {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  DOWNPOUR_CHECK(error == std::errc() && end == text->data() + text->size() && value > 0 && value <= kMostSeconds,
                 "environment variable ", name, ": expected seconds above 0 and at most ", kMostSeconds, ", found '",
                 *text, "'; unset it or start the program with `downpour run`");
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

ProcessRole role() {
  const auto text = variable("DOWNPOUR_ROLE");
  if (!text) {
    return ProcessRole::kAlone;
  }
  DOWNPOUR_CHECK(*text == "worker" || *text == "server",
                 "environment variable DOWNPOUR_ROLE: expected 'worker' or 'server', found '", *text, "'");
  return *text == "worker" ? ProcessRole::kWorker : ProcessRole::kServer;
}

// A program that was to join a job and trains alone instead would look as if all were well.
void check_complete() {
  std::string there;
  std::string missing;
  for (const char* name : {"DOWNPOUR_COORDINATOR", "DOWNPOUR_ROLE", "DOWNPOUR_JOB", "DOWNPOUR_SERVERS"}) {
    std::string& names = variable(name).value_or("").empty() ? missing : there;
    names += concat(names.empty() ? "" : ", ", name);
  }
  if (variable("DOWNPOUR_ROLE") == "worker") {
    for (const char* name : {"RANK", "WORLD_SIZE"}) {
      missing += variable(name) ? "" : concat(missing.empty() ? "" : ", ", name);
    }
  }
  DOWNPOUR_CHECK(
      there.empty() || missing.empty(), "environment variables: ", there, " set, but not ", missing,
      "; set all that `downpour serve` prints, start the program with `downpour run`, or unset all to train alone");
}

}  // namespace

Environment read_environment() {
  check_complete();
  Environment result;
  result.role = role();
  result.rank = number("RANK", 0, 0);
  result.world_size = number("WORLD_SIZE", 1, 1);
  DOWNPOUR_CHECK(result.rank < result.world_size, "environment variable RANK: expected less than WORLD_SIZE (",
                 result.world_size, "), found ", result.rank);
  result.job = number<std::uint64_t>("DOWNPOUR_JOB", 0, 0, 16);
  result.coordinator = variable("DOWNPOUR_COORDINATOR").value_or("");
  result.servers = number("DOWNPOUR_SERVERS", 0, 0);
  result.server_index = number("DOWNPOUR_SERVER_INDEX", -1, 0);
  result.listen_fd = number("DOWNPOUR_LISTEN_FD", -1, 0);
  result.run_folder = variable("DOWNPOUR_RUN_FOLDER").value_or("");
  result.silence = duration("DOWNPOUR_SILENCE");
  result.insecure = number("DOWNPOUR_INSECURE", 0, 0) != 0;
  result.no_deadlines = number("DOWNPOUR_NO_DEADLINES", 0, 0) != 0;
  return result;
}

std::vector<std::string> to_variables(const Environment& environment) {
  std::vector<std::string> variables;
  const auto add = [&](const char* name, const auto& value) { variables.push_back(concat(name, "=", value)); };
  const bool server = environment.role == ProcessRole::kServer;
  add("DOWNPOUR_ROLE", server ? "server" : "worker");
  if (!server) {
    add("RANK", environment.rank);
    add("WORLD_SIZE", environment.world_size);
  } else {
    add("DOWNPOUR_SERVER_INDEX", environment.server_index);
    add("DOWNPOUR_LISTEN_FD", environment.listen_fd);
  }
  add("DOWNPOUR_JOB", hexadecimal(environment.job));
  add("DOWNPOUR_COORDINATOR", environment.coordinator);
  add("DOWNPOUR_SERVERS", environment.servers);
  add("DOWNPOUR_RUN_FOLDER", environment.run_folder);
  if (environment.silence) {
    add("DOWNPOUR_SILENCE", seconds(*environment.silence));
  }
  add("DOWNPOUR_INSECURE", environment.insecure ? 1 : 0);
  add("DOWNPOUR_NO_DEADLINES", environment.no_deadlines ? 1 : 0);
  return variables;
}

bool sets(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

}  // namespace downpour
