#include "backends/init_process_group.h"

#include <sys/socket.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "backends/nccl_backend.h"
#include "backends/place.h"
#include "backends/process_group_downpour.h"
#include "csrc/base/error.h"
#include "csrc/base/fd.h"
#include "csrc/base/system_call.h"
#include "csrc/transport/tcp.h"

namespace downpour {
namespace {

using backends::Place;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr std::chrono::hours kNoDeadline(24 * 365);  // under a debugger

// ---- the names of this process's groups ---------------------------------------------------------------------------------------

// Groups that are still registered when the program ends have threads that must be gone before static objects are.
class Names {
 public:
  static Names& get() {
    static Names* const names = new Names;
    return *names;
  }
  bool has(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    return names_.contains(name);
  }
  void add(const std::string& name, const GroupPtr& group) {
    c10d::register_process_group(name, group);
    const std::scoped_lock lock(mutex_);
    names_.insert(name);
  }
  void remove(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    if (names_.erase(name) > 0) {
      c10d::unregister_process_group(name);
    }
  }

 private:
  Names() {
    std::atexit([] {
      for (const std::string& name : std::set<std::string>(get().names_)) {
        get().remove(name);
      }
    });
  }

  std::mutex mutex_;
  std::set<std::string> names_;
};

// ---- where the ranks meet -------------------------------------------------------------------------------------------------------

StorePtr make_store(const Place& place, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions terms;
  terms.port = static_cast<std::uint16_t>(place.port);
  terms.isServer = place.rank == 0 && !place.agent_store;
  terms.waitWorkers = false;  // the group names those who are missing
  terms.timeout = timeout;
  if (terms.isServer && place.master_socket >= 0) {
    terms.masterListenFd = place.master_socket;
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.master, terms);
  } catch (const std::exception& error) {
    const std::string where = concat(place.master, ":", place.port);
    throw CommError(terms.isServer ? concat("rank 0 could not open the job's store at ", where,
                                            ", set MASTER_PORT to a free port: ", error.what())
                                   : concat("rank ", place.rank, " could not reach the job's store at ", where,
                                            " within ", timeout.count() / 1000.0,
                                            " s, is rank 0 (MASTER_ADDR, MASTER_PORT) running? ", error.what()));
  }
}

// The job has one store, as long as the process lives: the socket that the launcher bound can be taken once.
StorePtr job_store(const Place& place, std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  static StorePtr* const store = new StorePtr;
  static int groups = 0;
  const std::scoped_lock lock(mutex);
  if (!store->defined()) {
    *store = make_store(place, timeout);
  }
  return c10::make_intrusive<c10d::PrefixStore>(concat("downpour/", place.attempt, "/", groups++), *store);
}

// The address by which the others reach this machine: that from which it reaches rank 0's.
std::string own_host(const Place& place) {
  const transport::Address master{place.master, static_cast<std::uint16_t>(place.port)};
  for (const auto& address : transport::look_up(master, transport::Exposure::kInsecure).addresses) {
    const Fd socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket && ::connect(socket.get(), address.get(), address.size) == 0) {
      return transport::local_address(socket.get()).host;
    }
  }
  throw CommError(concat("no way from this machine to ", place.master, " (MASTER_ADDR): ", system_reason()));
}

GroupPtr make_group(const StorePtr& store, int rank, int world, const InitOptions& options,
                    const collective::GroupOptions& terms) {
  const std::string& cuda = options.cuda_backend();
  DOWNPOUR_CHECK(cuda == ProcessGroupDownpour::kName || cuda == "nccl",
                 "cuda_backend: expected 'downpour' or 'nccl', found '", cuda, "'");
  DOWNPOUR_CHECK(!Names::get().has(options.name()), "there is a process group '", options.name(),
                 "' already: destroy_process_group() ends it, another name makes a second one");
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world);
  auto settings = c10::make_intrusive<ProcessGroupDownpour::Options>(options.timeout());
  settings->group = terms;
  settings->group_name = options.name();
  const c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<ProcessGroupDownpour>(store, rank, world, settings);
  using BackendType = c10d::ProcessGroup::BackendType;
  group->setBackend(at::kCPU, BackendType::CUSTOM, backend);
  if (cuda == "nccl") {
    group->setBackend(at::kCUDA, BackendType::NCCL, backends::make_nccl_backend(store, rank, world, options.timeout()));
  } else {
    group->setBackend(at::kCUDA, BackendType::CUSTOM, backend);
  }
  group->setDefaultBackend(BackendType::CUSTOM);
  group->setGroupName(options.name());
  Names::get().add(options.name(), group);
  return group;
}

}  // namespace

GroupPtr init_process_group(const InitOptions& options) {
  const Place place = backends::read_place();
  if (place.world == 1) {
    return make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
  }
  InitOptions settings = options;
  collective::GroupOptions terms;
  if (place.no_deadlines) {
    settings.timeout(kNoDeadline);
    terms.silence = kNoDeadline;
  }
  terms.insecure = options.insecure() || place.insecure;
  terms.host = own_host(place);
  return make_group(job_store(place, settings.timeout()), place.rank, place.world, settings, terms);
}

GroupPtr make_process_group(const StorePtr& store, int rank, int world, const InitOptions& options) {
  collective::GroupOptions terms;
  terms.insecure = options.insecure();
  return make_group(store, rank, world, options, terms);
}

void destroy_process_group(const GroupPtr& group) {
  Names::get().remove(group->getGroupName());
  group->shutdown();
}

}  // namespace downpour
