// `store_worker`: c10d's own rendezvous on what the launcher sets: rank 0 serves its TCPStore on the listening socket that it
// inherits, the others connect to MASTER_ADDR and MASTER_PORT, and each reads what all have written.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <iostream>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

c10::intrusive_ptr<c10d::TCPStore> store_of(int rank, int world_size) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.isServer = rank == 0;
  options.numWorkers = static_cast<std::size_t>(world_size);
  options.timeout = std::chrono::seconds(60);
  if (rank == 0) {
    options.masterListenFd = std::stoi(variable("DOWNPOUR_MASTER_FD"));
  }
  return c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
}

}  // namespace

int main() {
  const int rank = std::stoi(variable("RANK"));
  const int world_size = std::stoi(variable("WORLD_SIZE"));
  const auto served = store_of(rank, world_size);
  c10d::Store* const store = served.get();
  store->set("rank " + std::to_string(rank), std::to_string(rank * rank));
  std::string all;
  for (int other = 0; other < world_size; ++other) {
    all += " " + store->get_to_str("rank " + std::to_string(other));
  }
  // Rank 0 holds the store: it leaves last.
  store->add("done", 1);
  while (rank == 0 && store->add("done", 0) < world_size) {
  }
  std::cout << "found" << all << " at port " << served->getPort() << std::endl;
  return 0;
}
