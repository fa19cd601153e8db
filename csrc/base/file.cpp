#include "csrc/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "csrc/base/fd.h"
#include "csrc/base/system_call.h"

namespace downpour {
namespace {

using std::filesystem::path;

[[noreturn]] void fail(const path& where, std::string_view operation, int error) {
  throw Error(concat("'", where.string(), "': ", operation, ": ", system_reason(error)));
}

Fd open_file(const path& where, std::string_view operation, int flags, mode_t mode = 0) {
  Fd fd(uninterrupted([&] { return ::open(where.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode); }));
  if (!fd) {
    fail(where, operation, errno);
  }
  return fd;
}

void sync_fd(const Fd& fd, const path& where) {
  if (uninterrupted([&] { return ::fsync(fd.get()); }) != 0) {
    fail(where, "fsync", errno);
  }
}

class DiskFile final : public File {
 public:
  explicit DiskFile(path where)
      : where_(std::move(where)), fd_(open_file(where_, "create", O_WRONLY | O_CREAT | O_TRUNC, 0600)) {}

  void write(Bytes bytes) override {
    check_open();
    while (!bytes.empty()) {
      const ssize_t count = uninterrupted([&] { return ::write(fd_.get(), bytes.data(), bytes.size()); });
      if (count < 0) {
        fail(where_, "write", errno);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  void sync() override {
    check_open();
    sync_fd(fd_, where_);
  }

  // On Linux the descriptor is gone whatever close() answers, so it is never closed twice.
  void close() override {
    check_open();
    if (::close(fd_.release()) != 0 && errno != EINTR) {
      fail(where_, "close", errno);
    }
  }

 private:
  void check_open() const { DOWNPOUR_CHECK(fd_, "'", where_.string(), "': used after close()"); }

  path where_;
  Fd fd_;
};

// Nothing is allocated beyond what the file really has.
std::size_t size_of(const Fd& fd, const path& where, std::size_t limit_bytes) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    fail(where, "fstat", errno);
  }
  DOWNPOUR_CHECK(S_ISREG(status.st_mode), "'", where.string(), "': read: not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  DOWNPOUR_CHECK(size <= limit_bytes, "'", where.string(), "': read: expected at most ", limit_bytes, " bytes, found ",
                 size);
  return static_cast<std::size_t>(size);
}

void make_folder(const path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) {
    return;
  }
  const int error = errno;
  struct stat status {};
  if (error != EEXIST || ::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    fail(folder, "mkdir", error == EEXIST ? ENOTDIR : error);
  }
}

class DiskFiles final : public Files {
 public:
  std::unique_ptr<File> create(const path& where) override { return std::make_unique<DiskFile>(where); }

  std::vector<std::byte> read(const path& where, std::size_t limit_bytes) override {
    // O_NONBLOCK: opening a pipe that somebody left there must not wait for a writer.
    const Fd fd = open_file(where, "open", O_RDONLY | O_NONBLOCK);
    std::vector<std::byte> bytes(size_of(fd, where, limit_bytes));
    for (std::size_t have = 0; have < bytes.size();) {
      const ssize_t count = uninterrupted([&] { return ::read(fd.get(), bytes.data() + have, bytes.size() - have); });
      if (count < 0) {
        fail(where, "read", errno);
      }
      DOWNPOUR_CHECK(count > 0, "'", where.string(), "': read: expected ", bytes.size(), " bytes, found ", have);
      have += static_cast<std::size_t>(count);
    }
    return bytes;
  }

  bool exists(const path& where) override {
    struct stat status {};
    if (::lstat(where.c_str(), &status) == 0) {
      return true;
    }
    if (errno != ENOENT && errno != ENOTDIR) {
      fail(where, "lstat", errno);
    }
    return false;
  }

  void rename(const path& from, const path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      fail(from, concat("rename to '", to.string(), "'"), errno);
    }
  }

  void remove(const path& where) override {
    if (::unlink(where.c_str()) != 0 && errno != ENOENT) {
      fail(where, "remove", errno);
    }
  }

  std::vector<std::string> list(const path& folder) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
      fail(folder, "list", error.value());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  void sync_folder(const path& folder) override {
    const Fd fd(uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (!fd) {
      fail(folder, "open", errno);
    }
    sync_fd(fd, folder);
  }

  void create_folders(const path& folder) override {
    path so_far;
    for (const path& part : folder) {
      so_far /= part;
      if (!part.empty()) {
        make_folder(so_far);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Files> disk_files() { return std::make_unique<DiskFiles>(); }

}  // namespace downpour
