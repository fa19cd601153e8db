#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/file.h"
#include "csrc/base/random.h"

namespace downpour {

// What a simulated process does at the call at which it dies. No Error, so that no code under test can handle it.
struct Crash {};

// Files in memory that know what a power failure leaves: a file's bytes count once synced, a name once its folder was.
// Folders are part of the names only. Threads: one.
class MemoryFiles final : public Files {
 public:
  using Path = std::filesystem::path;

  std::unique_ptr<File> create(const Path& path) override {
    auto& inode = names_[path.string()];
    if (inode == nullptr) {
      inode = std::make_shared<Inode>();
      pending_.push_back({path.string(), inode, ""});
    }
    inode->bytes.clear();
    return std::make_unique<MemoryFile>(inode);
  }

  std::vector<std::byte> read(const Path& path, std::size_t limit_bytes) override {
    const auto found = names_.find(path.string());
    DOWNPOUR_CHECK(found != names_.end(), "'", path.string(), "': open: No such file or directory");
    DOWNPOUR_CHECK(found->second->bytes.size() <= limit_bytes, "'", path.string(), "': read: expected at most ",
                   limit_bytes, " bytes, found ", found->second->bytes.size());
    return found->second->bytes;
  }

  bool exists(const Path& path) override { return names_.contains(path.string()); }

  void rename(const Path& from, const Path& to) override {
    const auto found = names_.find(from.string());
    DOWNPOUR_CHECK(found != names_.end(), "'", from.string(), "': rename: No such file or directory");
    const std::shared_ptr<Inode> inode = found->second;
    names_.erase(found);
    names_[to.string()] = inode;
    pending_.push_back({to.string(), inode, from.string()});
  }

  void remove(const Path& path) override {
    if (names_.erase(path.string()) > 0) {
      pending_.push_back({path.string(), nullptr, ""});
    }
  }

  std::vector<std::string> list(const Path& folder) override {
    std::vector<std::string> found;
    for (const auto& [name, inode] : names_) {
      if (Path(name).parent_path() == folder) {
        found.push_back(Path(name).filename().string());
      }
    }
    return found;
  }

  void sync_folder(const Path&) override {
    durable_names_ = names_;
    pending_.clear();
  }

  void create_folders(const Path&) override {}

  // ---- what a test does to them ----

  std::vector<std::byte>& bytes(const Path& path) { return names_.at(path.string())->bytes; }
  void put(const Path& path, std::vector<std::byte> bytes) {
    create(path);
    names_[path.string()]->bytes = std::move(bytes);
  }

  // The power fails: everything that was not synced is gone.
  void lose_power() {
    names_ = durable_names_;
    for (auto& [name, inode] : names_) {
      inode->bytes = inode->durable;
    }
    settle();
  }

  // The power fails while the machine was writing: of what was not synced, any part may have got to the disk, in any
  // order.
  void lose_power(Random& random) {
    names_ = durable_names_;
    for (const Change& change : pending_) {
      if (random.below(2) == 0) {
        apply(change);
      }
    }
    for (auto& [name, inode] : names_) {
      if (inode->bytes != inode->durable) {
        inode->bytes.resize(random.below(inode->bytes.size() + 1));
      }
    }
    settle();
  }

 private:
  struct Inode {
    std::vector<std::byte> bytes, durable;
  };
  struct Change {
    std::string name;
    std::shared_ptr<Inode> inode;  // nullptr: the name was removed
    std::string from;              // renamed from; empty: not renamed
  };

  class MemoryFile final : public File {
   public:
    explicit MemoryFile(std::shared_ptr<Inode> inode) : inode_(std::move(inode)) {}
    void write(Bytes bytes) override { inode_->bytes.insert(inode_->bytes.end(), bytes.begin(), bytes.end()); }
    void sync() override { inode_->durable = inode_->bytes; }
    void close() override {}

   private:
    std::shared_ptr<Inode> inode_;  // shared with the names: a file outlives its name
  };

  void apply(const Change& change) {
    if (!change.from.empty()) {
      names_.erase(change.from);
    }
    if (change.inode == nullptr) {
      names_.erase(change.name);
    } else {
      names_[change.name] = change.inode;
    }
  }

  void settle() {
    for (auto& [name, inode] : names_) {
      inode->durable = inode->bytes;
    }
    durable_names_ = names_;
    pending_.clear();
  }

  std::map<std::string, std::shared_ptr<Inode>> names_, durable_names_;
  std::vector<Change> pending_;  // changes of names since the last sync_folder
};

enum class Fault {
  kCrash,        // the process dies in the call: half of a write is done; every later call dies, too
  kInputOutput,  // EIO, once, without effect
  kNoSpace,      // ENOSPC after half of a write, once
  kFull,         // ENOSPC for every write from here on
  kLateRename,   // EIO of a rename that has happened all the same, once; other calls do not fail
};

// Other files, of which the n-th call fails. Threads: one.
class FaultyFiles final : public Files {
 public:
  using Path = std::filesystem::path;

  // `at`: the call that fails, from 0; calls of files count, too.
  FaultyFiles(Files& files, Fault fault, int at) : files_(files), fault_(fault), at_(at) {}

  int calls() const { return calls_; }

  std::unique_ptr<File> create(const Path& path) override {
    call("create", path);
    return std::make_unique<FaultyFile>(*this, files_.create(path), path);
  }
  std::vector<std::byte> read(const Path& path, std::size_t limit_bytes) override {
    call("read", path);
    return files_.read(path, limit_bytes);
  }
  bool exists(const Path& path) override {
    call("lstat", path);
    return files_.exists(path);
  }
  void rename(const Path& from, const Path& to) override {
    const bool late = fault_ == Fault::kLateRename && calls_ == at_;
    call("rename", from);
    files_.rename(from, to);
    if (late) {
      throw Error(concat("'", from.string(), "': rename: Input/output error"));
    }
  }
  void remove(const Path& path) override {
    call("remove", path);
    files_.remove(path);
  }
  std::vector<std::string> list(const Path& folder) override {
    call("list", folder);
    return files_.list(folder);
  }
  void sync_folder(const Path& folder) override {
    call("fsync", folder);
    files_.sync_folder(folder);
  }
  void create_folders(const Path& folder) override {
    call("mkdir", folder);
    files_.create_folders(folder);
  }

 private:
  class FaultyFile final : public File {
   public:
    FaultyFile(FaultyFiles& files, std::unique_ptr<File> file, Path path)
        : files_(files), file_(std::move(file)), path_(std::move(path)) {}
    void write(Bytes bytes) override {
      files_.call("write", path_, [&] { file_->write(bytes.first(bytes.size() / 2)); });
      file_->write(bytes);
    }
    void sync() override {
      files_.call("fsync", path_);
      file_->sync();
    }
    void close() override {
      files_.call("close", path_);
      file_->close();
    }

   private:
    FaultyFiles& files_;
    std::unique_ptr<File> file_;
    Path path_;
  };

  void call(std::string_view operation, const Path& path) {
    call(operation, path, [] {});
  }

  template <typename Half>
  void call(std::string_view operation, const Path& path, const Half& half) {
    const int index = calls_++;
    if (crashed_) {
      throw Crash{};
    }
    if (fault_ == Fault::kFull && index >= at_ && operation == "write") {
      half();
      throw Error(concat("'", path.string(), "': write: No space left on device"));
    }
    if (fault_ != Fault::kFull && fault_ != Fault::kLateRename && index == at_) {
      fail(operation, path, half);
    }
  }

  template <typename Half>
  void fail(std::string_view operation, const Path& path, const Half& half) {
    if (fault_ == Fault::kCrash) {
      half();
      crashed_ = true;
      throw Crash{};
    }
    if (fault_ == Fault::kNoSpace) {
      half();
      throw Error(concat("'", path.string(), "': ", operation, ": No space left on device"));
    }
    throw Error(concat("'", path.string(), "': ", operation, ": Input/output error"));
  }

  Files& files_;
  Fault fault_;
  int at_;
  int calls_ = 0;
  bool crashed_ = false;
};

}  // namespace downpour
