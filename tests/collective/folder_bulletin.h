#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/file.h"
#include "csrc/collective/bulletin.h"

// A bulletin of files in a folder, for ranks that are processes. A file appears whole or not at all.
namespace downpour::collective {

class FolderBulletin final : public Bulletin {
 public:
  explicit FolderBulletin(std::filesystem::path folder) : folder_(std::move(folder)) {
    files_->create_folders(folder_);
  }

  void put(const std::string& key, Bytes value) override {
    const std::filesystem::path path = path_of(key), unfinished = path.string() + ".unfinished";
    const auto file = files_->create(unfinished);
    file->write(value);
    file->close();
    files_->rename(unfinished, path);
  }
  std::vector<std::byte> get(const std::string& key, TimePoint deadline) override {
    const std::filesystem::path path = path_of(key);
    while (!files_->exists(path)) {
      DOWNPOUR_CHECK_AS(TimeoutError, std::chrono::steady_clock::now() < deadline, "nobody put '", key, "'");
      ::poll(nullptr, 0, kMillisecondsBetweenLooks);
    }
    return files_->read(path, kLargestBytes);
  }

 private:
  static constexpr int kMillisecondsBetweenLooks = 1;
  static constexpr std::size_t kLargestBytes = 64 * 1024;

  std::filesystem::path path_of(std::string key) const {
    std::ranges::replace(key, '/', '.');
    return folder_ / key;
  }

  std::filesystem::path folder_;
  std::unique_ptr<Files> files_ = disk_files();
};

}  // namespace downpour::collective
