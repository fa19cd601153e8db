#pragma once
// The ranks of a process group as processes, each with one thread for tensors.
#include <torch/torch.h>

#include <deque>
#include <filesystem>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backends/process_group_downpour.h"
#include "tests/bench/bench.h"

namespace downpour::bench {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct Rank {
  StorePtr store;
  int rank;
  int world;

  StorePtr place(const std::string& name) const { return c10::make_intrusive<c10d::PrefixStore>(name, store); }
  c10::intrusive_ptr<ProcessGroupDownpour> group(const std::string& name, transport::SharedMemory medium) const {
    auto options = c10::make_intrusive<ProcessGroupDownpour::Options>(std::chrono::minutes(1));
    options->group.shared_memory = medium;
    return c10::make_intrusive<ProcessGroupDownpour>(place(name), rank, world, options);
  }
};

// Runs `part` as every rank, each in a process of its own.
inline void as_ranks(int world, const std::function<void(const Rank& self)>& part) {
  const std::string path = std::filesystem::temp_directory_path() / concat("downpour_bench_", getpid(), "_", world);
  std::deque<Child> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank](int socket) {
      at::set_num_threads(1);
      part({c10::make_intrusive<c10d::FileStore>(path, world), rank, world});
      reply(socket, 'd');
      next_command(socket);  // all are done
    });
  }
  for (Child& rank : ranks) {
    rank.answer<char>();
  }
  std::filesystem::remove(path);
}

}  // namespace downpour::bench
