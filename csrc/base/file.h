#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/bytes.h"

// Files as the core sees them: handed in, so that tests fill the disk and crash at any call.
namespace downpour {

// Errors: all functions throw Error naming the path, the operation and the system's reason.
// Threads: one per object of File; Files from any.
class File {
 public:
  virtual ~File() = default;
  virtual void write(Bytes bytes) = 0;  // all of them, after those written before
  virtual void sync() = 0;              // data and metadata are on the disk when it returns
  virtual void close() = 0;             // reports late errors; the destructor closes silently
};

class Files {
 public:
  virtual ~Files() = default;
  virtual std::unique_ptr<File> create(
      const std::filesystem::path& path) = 0;  // truncates; never follows a symbolic link
  // A regular file of at most limit_bytes, whole; never follows a symbolic link.
  virtual std::vector<std::byte> read(const std::filesystem::path& path, std::size_t limit_bytes) = 0;
  virtual bool exists(const std::filesystem::path& path) = 0;  // nothing does below what is no folder
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove(const std::filesystem::path& path) = 0;  // no error when it is not there
  virtual std::vector<std::string> list(
      const std::filesystem::path& folder) = 0;  // names, sorted; none when it is not there, or no folder
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
  virtual void create_folders(const std::filesystem::path& folder) = 0;  // mode 0700
};

// The machine's own files.
std::unique_ptr<Files> disk_files();

}  // namespace downpour
