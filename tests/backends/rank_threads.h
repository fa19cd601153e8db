#pragma once

#include <torch/torch.h>

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "backends/process_group_downpour.h"

#if __has_include(<gloo/context.h>)
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#define DOWNPOUR_TEST_GLOO 1
#endif

// The ranks of a process group as threads of one process.
namespace downpour::backends {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

enum class Kind { kSharedMemory, kTcp, kTwoLevels, kGloo };  // kTwoLevels: two machines, odd and even ranks

inline std::string name(Kind kind) {
  switch (kind) {
    case Kind::kSharedMemory: return "shm";
    case Kind::kTcp: return "tcp";
    case Kind::kTwoLevels: return "two_levels";
    case Kind::kGloo: return "gloo";
  }
  return "";
}

inline c10::intrusive_ptr<ProcessGroupDownpour::Options> options_of(
    Kind kind, int rank, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto options = c10::make_intrusive<ProcessGroupDownpour::Options>(timeout);
  options->group.shared_memory = kind == Kind::kTcp ? transport::SharedMemory::kNever : transport::SharedMemory::kAuto;
  if (kind == Kind::kTwoLevels) {
    options->group.machine = rank % 2 == 0 ? "even" : "odd";
  }
  return options;
}

inline GroupPtr group_of(const c10::intrusive_ptr<c10d::Backend>& backend, const StorePtr& store,
                         c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  group->setBackend(at::kCPU, type, backend);
  group->setDefaultBackend(type);
  return group;
}

inline GroupPtr make_group(Kind kind, const StorePtr& store, int rank, int world) {
#ifdef DOWNPOUR_TEST_GLOO
  if (kind == Kind::kGloo) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    return group_of(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options), store,
                    c10d::ProcessGroup::BackendType::GLOO);
  }
#endif
  return group_of(c10::make_intrusive<ProcessGroupDownpour>(store, rank, world, options_of(kind, rank)), store);
}

// What an action throws says; "" where it throws nothing.
template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Runs `part(rank, store)` on `world` threads and throws the first of what they throw.
inline void with_ranks(int world, const std::function<void(int rank, const StorePtr& store)>& part) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr error;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        part(rank, c10::make_intrusive<c10d::PrefixStore>("test", store));
      } catch (...) {
        const std::scoped_lock lock(mutex);
        error = error ? error : std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

inline void with_groups(Kind kind, int world, const std::function<void(const GroupPtr& group)>& part) {
  with_ranks(world, [&](int rank, const StorePtr& store) {
    const GroupPtr group = make_group(kind, store, rank, world);
    group->barrier()->wait();
    part(group);
  });
}

}  // namespace downpour::backends
