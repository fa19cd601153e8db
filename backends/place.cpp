#include "backends/place.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "csrc/base/checksum.h"
#include "csrc/base/error.h"

namespace downpour::backends {
namespace {

// Ports that a job on one machine, started by Slurm or Open MPI without MASTER_PORT, derives from its name.
constexpr int kFirstPort = 20'000;
constexpr int kPorts = 10'000;

// Who may have started the process, and what it calls things. The first whose rank is set counts.
struct Starter {
  const char* name;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;  // as many ranks on this machine
  const char* job;          // the same for all ranks of one job
};
constexpr std::array<Starter, 3> kStarters{{
    {"downpour run or torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ""},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"},
}};

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::optional<int> number(const char* name, int least, int most) {
  const auto text = variable(name);
  if (!text) {
    return std::nullopt;
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  DOWNPOUR_CHECK(error == std::errc() && end == text->data() + text->size() && value >= least && value <= most, name,
                 ": expected a number from ", least, " to ", most, ", found '", *text, "'");
  return value;
}

const Starter* find_starter() {
  for (const Starter& starter : kStarters) {
    if (variable(starter.rank)) {
      return &starter;
    }
  }
  DOWNPOUR_CHECK(!variable("WORLD_SIZE"),
                 "WORLD_SIZE is set and RANK is not: start every process with its own RANK, or with "
                 "`downpour run`");
  return nullptr;
}

bool is_on_one_machine(const Starter& starter, int world) {
  const auto local = number(starter.local_world, 1, world);
  return (local && *local == world) || variable("SLURM_NNODES").value_or("") == "1";
}

// Only what was not set: ranks of one job on one machine find each other without it.
void find_master(const Starter& starter, Place& place) {
  const auto address = variable("MASTER_ADDR");
  const auto port = number("MASTER_PORT", 1, 65'535);
  const auto job = *starter.job == '\0' ? std::nullopt : variable(starter.job);
  const bool alone = job && is_on_one_machine(starter, place.world);
  DOWNPOUR_CHECK(address || alone, starter.rank, " is set (", starter.name,
                 ") and MASTER_ADDR is not: set it to the host of rank 0, and MASTER_PORT to a free port there");
  DOWNPOUR_CHECK(port || alone,
                 "MASTER_ADDR is set and MASTER_PORT is not: set it to a free port on the host of rank 0");
  place.master = address.value_or("127.0.0.1");
  const auto name = job.value_or("");
  place.port = port.value_or(kFirstPort + static_cast<int>(checksum(std::as_bytes(std::span(name))) % kPorts));
}

}  // namespace

Place read_place() {
  const Starter* const starter = find_starter();
  Place place;
  if (starter == nullptr) {
    return place;
  }
  const auto world = number(starter->world, 1, 1 << 20);
  DOWNPOUR_CHECK(world, starter->rank, " is set and ", starter->world, " is not: start the program with ",
                 starter->name);
  place.world = *world;
  place.rank = number(starter->rank, 0, place.world - 1).value();
  place.local_rank = number(starter->local_rank, 0, place.world - 1).value_or(0);
  if (place.world > 1) {
    find_master(*starter, place);
    place.master_socket = number("DOWNPOUR_MASTER_FD", 3, 1 << 20).value_or(-1);
    place.agent_store = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    place.attempt = number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
    place.insecure = variable("DOWNPOUR_INSECURE").value_or("") == "1";
    place.no_deadlines = variable("DOWNPOUR_NO_DEADLINES").value_or("") == "1";
  }
  return place;
}

}  // namespace downpour::backends
