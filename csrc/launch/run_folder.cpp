#include "csrc/launch/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "csrc/base/error.h"

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

}  // namespace

RunFolder::RunFolder(const std::filesystem::path& given, const std::filesystem::path& temporary)
    : path_(given.empty() ? make_fresh(temporary) : make_given(given)), kept_(!given.empty()) {
  const auto lock = path_ / "lock";
  lock_ = Fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  DOWNPOUR_CHECK(lock_, "--run-folder ", path_.string(), ": cannot write there: ", std::strerror(errno),
                 "; choose another one");
  DOWNPOUR_CHECK(::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0, "--run-folder ", path_.string(),
                 ": another job uses it; choose another one, or wait for that job");
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
