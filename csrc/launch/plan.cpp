#include "csrc/launch/plan.h"

#include <algorithm>

#include "csrc/base/environment.h"
#include "csrc/base/malloc_settings.h"
#include "csrc/base/text.h"

namespace downpour::launch {
namespace {

// Inherited from another launcher they would make a process believe that it is somebody else.
constexpr const char* kForeign[] = {"DOWNPOUR_ROLE",
                                    "DOWNPOUR_MASTER_FD",
                                    "DOWNPOUR_SERVER_INDEX",
                                    "DOWNPOUR_LISTEN_FD",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "GROUP_RANK",
                                    "GROUP_WORLD_SIZE",
                                    "ROLE_RANK",
                                    "ROLE_WORLD_SIZE",
                                    "TORCHELASTIC_USE_AGENT_STORE"};

Environment describe(const RunOptions& options, const Plan& plan, Target who) {
  Environment environment;
  const bool works = is_worker(who);
  environment.role = works ? ProcessRole::kWorker : ProcessRole::kServer;
  environment.rank = works ? who.index : 0;
  environment.world_size = options.workers;
  environment.job = plan.job;
  environment.coordinator = plan.endpoints.coordinator;
  environment.servers = options.servers;
  environment.server_index = works ? -1 : who.index;
  environment.listen_fd = works ? -1 : plan.endpoints.server_fds.at(static_cast<std::size_t>(who.index));
  environment.run_folder = plan.run_folder;
  environment.silence = options.silence;
  environment.insecure = options.insecure;
  environment.no_deadlines = options.gdb.has_value();
  return environment;
}

// For c10d, other libraries, tools and the user's own code: torchrun's names, and ours that no code of ours reads.
std::vector<std::string> for_others(const RunOptions& options, const Plan& plan, Target who, int life) {
  std::vector<std::string> variables;
  const auto add = [&](const char* name, const auto& value) { variables.push_back(concat(name, "=", value)); };
  if (is_worker(who)) {
    add("LOCAL_RANK", who.index);
    add("LOCAL_WORLD_SIZE", options.workers);
  }
  if (who == worker(0)) {
    add("DOWNPOUR_MASTER_FD", plan.endpoints.master_fd);  // the listening socket of MASTER_PORT
  }
  add("MASTER_ADDR", plan.endpoints.master_address);
  add("MASTER_PORT", plan.endpoints.master_port);
  add("DOWNPOUR_SERVER_ENDPOINTS", join(plan.endpoints.servers));
  add("DOWNPOUR_RESTARTS", life);  // earlier lives of this process
  return variables;
}

std::string counted(int count, const std::string& what) { return concat(count, " ", what, count == 1 ? "" : "s"); }

}  // namespace

Variables user_variables(const RunOptions& options, const Variables& ours) {
  Variables result = ours;
  for (const char* name : kForeign) {
    result.remove(name);
  }
  for (const std::string& entry : options.variables) {
    if (entry.find('=') != std::string::npos) {
      result.set(entry);
      continue;
    }
    const auto value = ours.get(entry);
    DOWNPOUR_CHECK(value, "-x ", entry, ": this variable is not set here; write -x ", entry, "=VALUE");
    result.set(concat(entry, "=", *value));
  }
  return result;
}

void plan_threads(const RunOptions& options, int cores, Plan& plan) {
  const auto users = plan.user.get("OMP_NUM_THREADS");
  if (users && options.threads == 0) {
    plan.threads = 0;
    plan.threads_text = concat("OMP_NUM_THREADS=", *users, " as you set it");
  } else if (options.threads > 0) {
    plan.threads = options.threads;
    plan.threads_text = concat(counted(plan.threads, "thread"), " each (--threads)");
  } else {
    plan.threads = std::max(1, cores / options.workers);
    plan.threads_text = concat(counted(plan.threads, "thread"), " each (", counted(cores, "core"), " / ",
                               counted(options.workers, "worker"), ")");
  }
}

std::vector<std::string> variables_of(const RunOptions& options, const Plan& plan, Target who, int life) {
  Variables result = plan.user;
  result.set(to_variables(describe(options, plan, who)));
  result.set(for_others(options, plan, who, life));
  if (is_worker(who)) {
    result.set(malloc_variables(plan.user.entries()));
    if (plan.threads > 0) {
      result.set(concat("OMP_NUM_THREADS=", plan.threads));
      if (options.threads > 0 || !plan.user.get("MKL_NUM_THREADS")) {
        result.set(concat("MKL_NUM_THREADS=", plan.threads));
      }
    }
  }
  return result.entries();
}

std::string to_text(const RunOptions& options, const Plan& plan) {
  return concat(options.servers == 0 ? "" : counted(options.servers, "server") + ", ",
                counted(options.workers, "worker"), ", ", plan.threads_text,
                options.gdb ? concat(", rank ", *options.gdb, " under gdb, no deadlines") : "",
                options.insecure ? concat(", ", kInsecureText) : "",
                options.run_folder.empty() && !options.keep ? "" : "; run folder " + plan.run_folder);
}

}  // namespace downpour::launch
