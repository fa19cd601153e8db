#include "csrc/launch/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace downpour::launch {
namespace {

std::filesystem::path make_fresh(const std::filesystem::path& temporary) {
  std::string pattern = (temporary / "downpour-XXXXXX").string();
  DOWNPOUR_CHECK(::mkdtemp(pattern.data()) != nullptr, "cannot make a run folder below ", temporary.string(), ": ",
                 std::strerror(errno), "; set TMPDIR or pass --run-folder");
  return pattern;
}

std::filesystem::path make_given(const std::filesystem::path& given) {
  auto folder = std::filesystem::absolute(given).lexically_normal();
  if (!folder.has_filename()) {
    folder = folder.parent_path();  // "run/" is "run"
  }
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  DOWNPOUR_CHECK(::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST, "--run-folder ", folder.string(),
                 ": cannot make it: ", std::strerror(errno));
  return folder;
}

constexpr const char* kJobLock = "lock";

// Who is there writes what it is into the file once it has the lock.
std::string holder(int file) {
  char text[64] = {};
  const ssize_t count = ::pread(file, text, sizeof(text) - 1, 0);
  const std::string_view line = std::string_view(text, count > 0 ? static_cast<std::size_t>(count) : 0);
  return line.empty() ? "another process" : std::string(line.substr(0, line.find('\n')));
}

enum class Sharing { kNone, kServers };

Fd open_lock(const std::filesystem::path& file) {
  return Fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
}

void take(const Fd& file, const std::filesystem::path& path, Sharing sharing, const std::string& who) {
  const std::string folder = path.parent_path().string();
  DOWNPOUR_CHECK(file, "--run-folder ", folder, ": cannot write there: ", std::strerror(errno), "; choose another one");
  const int operation = sharing == Sharing::kNone ? LOCK_EX : LOCK_SH;
  DOWNPOUR_CHECK(::flock(file.get(), operation | LOCK_NB) == 0, "--run-folder ", folder, ": ", holder(file.get()),
                 " uses it (", path.filename().string(), "); choose another one, or end that one first");
  // For people; the lock holds without it.
  if (::ftruncate(file.get(), 0) != 0 || ::pwrite(file.get(), who.data(), who.size(), 0) < 0) {
    log_warning("cannot write into ", path.string(), ": ", std::strerror(errno));
  }
}

Fd lock(const std::filesystem::path& path, Sharing sharing, const std::string& who) {
  Fd file = open_lock(path);
  take(file, path, sharing, who);
  return file;
}

std::string own_process() { return concat("process ", ::getpid(), "\n"); }

}  // namespace

ServerLocks lock_for_server(const std::filesystem::path& run_folder, int index) {
  const std::filesystem::path folder = make_given(run_folder);
  const std::string who = "a server by hand\n";  // of several, any may end first
  ServerLocks locks;
  locks.index = lock(folder / concat("lock-", index), Sharing::kNone, own_process());
  locks.jobs.push_back(lock(folder / kJobLock, Sharing::kServers, who));
  if (folder == snapshot_folder(folder.parent_path())) {
    const std::filesystem::path above = folder.parent_path() / kJobLock;
    if (Fd file = open_lock(above)) {  // where we may not write there is no job of ours
      take(file, above, Sharing::kServers, who);
      locks.jobs.push_back(std::move(file));
    }
  }
  return locks;
}

RunFolder::RunFolder(const std::filesystem::path& given, const std::filesystem::path& temporary)
    : path_(given.empty() ? make_fresh(temporary) : make_given(given)), kept_(!given.empty()) {
  lock_ = lock(path_ / kJobLock, Sharing::kNone, own_process());
}

void RunFolder::check_snapshots() const {
  const auto folder = snapshots();
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(folder, ignored))) {
    return;
  }
  // Asked of what is in it, a file says that it is no folder.
  const bool writable = ::faccessat(AT_FDCWD, (folder / ".").c_str(), R_OK | W_OK | X_OK, AT_EACCESS) == 0;
  DOWNPOUR_CHECK(writable, "--run-folder ", path_.string(), ": cannot write snapshots into ", folder.string(), ": ",
                 std::strerror(errno), "; choose another one");
}

RunFolder::~RunFolder() {
  if (!kept_) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

std::filesystem::path log_file(const std::filesystem::path& folder, Target who, int life, Channel channel) {
  return folder / concat(file_text(who), life == 0 ? "" : concat(".restart-", life),
                         channel == Channel::kError ? ".err" : ".out");
}

}  // namespace downpour::launch
