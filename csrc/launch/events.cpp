#include "csrc/launch/events.h"

#include <nlohmann/json.hpp>

#include "csrc/launch/wall_clock.h"

namespace downpour::launch {
namespace {

using Json = nlohmann::ordered_json;

Json event(const char* name) { return {{"event", name}, {"time", iso_text(std::chrono::system_clock::now())}}; }

Json event(const char* name, Target who, int life) {
  Json json = event(name);
  json["role"] = role_text(who);
  json["rank"] = who.index;
  json["restart"] = life;
  return json;
}

std::string line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

void Events::plan(std::string_view text, const Summary& summary) {
  Json json = event("plan");
  json["text"] = text;
  json["workers"] = summary.workers;
  json["servers"] = summary.servers;
  json["run_folder"] = summary.run_folder;
  write_(line(json));
}

void Events::start(Target who, int life, int pid, const std::string& log) {
  Json json = event("start", who, life);
  json["pid"] = pid;
  json["log"] = log;
  write_(line(json));
}

void Events::ready(Target who, int life) { write_(line(event("ready", who, life))); }

void Events::exit(Target who, int life, int pid, const ExitStatus& status) {
  Json json = event("exit", who, life);
  json["pid"] = pid;
  json["exit_code"] = status.shell_code();
  json["signal"] = status.signal == 0 ? Json() : Json(signal_name(status.signal));
  write_(line(json));
}

void Events::restart(const Failed& failure) {
  Json json = event("restart", failure.who, failure.restart);
  json["allowed"] = failure.allowed;
  json["pause_s"] = seconds(failure.pause);
  write_(line(json));
}

void Events::signal(int number) {
  Json json = event("signal");
  json["signal"] = signal_name(number);
  write_(line(json));
}

void Events::note(std::string_view text) {
  Json json = event("note");
  json["text"] = text;
  write_(line(json));
}

void Events::progress(const std::map<int, WorkerScore>& workers) {
  Json json = event("progress");
  for (const auto& [index, score] : workers) {
    Json item = {{"rank", index},
                 {"step", score.step},
                 {"samples", score.samples},
                 {"samples_per_s", score.samples_per_second},
                 {"loss", score.loss ? Json(*score.loss) : Json()},
                 {"staleness", score.staleness}};
    json["workers"].push_back(item);
  }
  write_(line(json));
}

void Events::end(const Summary& summary) {
  Json json = event("end");
  json["exit_code"] = summary.exit_code;
  json["summary"] = Json::parse(to_json(summary));
  write_(line(json));
}

}  // namespace downpour::launch
