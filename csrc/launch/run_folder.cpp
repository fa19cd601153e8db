#include "csrc/launch/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

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
  const auto folder = std::filesystem::absolute(given).lexically_normal();
  std::error_code ignored;
  std::filesystem::create_directories(folder.parent_path(), ignored);
  DOWNPOUR_CHECK(::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST, "--run-folder ", folder.string(),
                 ": cannot make it: ", std::strerror(errno));
  return folder;
}

// Who is there writes its number into the file once it has the lock.
std::string holder(int file) {
  char text[32] = {};
  const ssize_t count = ::pread(file, text, sizeof(text) - 1, 0);
  const long pid = count > 0 ? std::atol(text) : 0;
  return pid > 0 ? concat("process ", pid) : "another process";
}

Fd lock(const std::filesystem::path& folder, const std::string& name) {
  Fd file(::open((folder / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  DOWNPOUR_CHECK(file, "--run-folder ", folder.string(), ": cannot write there: ", std::strerror(errno),
                 "; choose another one");
  DOWNPOUR_CHECK(::flock(file.get(), LOCK_EX | LOCK_NB) == 0, "--run-folder ", folder.string(), ": ",
                 holder(file.get()), " uses it (", name, "); choose another one, or end that one first");
  const std::string own = concat(::getpid(), "\n");
  // For people; the lock holds without it.
  if (::ftruncate(file.get(), 0) != 0 || ::pwrite(file.get(), own.data(), own.size(), 0) < 0) {
    log_warning("cannot write into ", (folder / name).string(), ": ", std::strerror(errno));
  }
  return file;
}

}  // namespace

Fd lock_for_server(const std::filesystem::path& run_folder, int index) {
  return lock(make_given(run_folder), concat("lock-", index));
}

RunFolder::RunFolder(const std::filesystem::path& given, const std::filesystem::path& temporary)
    : path_(given.empty() ? make_fresh(temporary) : make_given(given)), kept_(!given.empty()) {
  lock_ = lock(path_, "lock");
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
