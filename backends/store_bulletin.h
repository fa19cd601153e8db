#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

#include "csrc/collective/bulletin.h"

namespace downpour::backends {

// A bulletin on any store of c10d's: TCPStore, FileStore, HashStore. It keeps a client of its own, since a store that blocks in one thread
// blocks the others.
class StoreBulletin final : public collective::Bulletin {
 public:
  explicit StoreBulletin(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {}

  void put(const std::string& key, Bytes value) override;
  std::vector<std::byte> get(const std::string& key, TimePoint deadline) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace downpour::backends
