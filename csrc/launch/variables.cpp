#include "csrc/launch/variables.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "csrc/base/environment.h"

namespace downpour::launch {
namespace {

bool executable(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

Variables::Variables(const char* const* entries) {
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    entries_.emplace_back(*entries);
  }
}

std::optional<std::string> Variables::get(std::string_view name) const {
  const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return sets(entry, name); });
  return at == entries_.end() ? std::nullopt : std::optional(at->substr(name.size() + 1));
}

void Variables::remove(std::string_view name) {
  std::erase_if(entries_, [&](const std::string& entry) { return sets(entry, name); });
}

void Variables::set(const std::string& entry) {
  remove(std::string_view(entry).substr(0, entry.find('=')));
  entries_.push_back(entry);
}

void Variables::set(const std::vector<std::string>& entries) {
  for (const auto& entry : entries) {
    set(entry);
  }
}

std::optional<std::string> find_program(const std::string& name, const Variables& variables) {
  if (name.find('/') != std::string::npos) {
    return executable(name) ? std::optional(name) : std::nullopt;
  }
  const std::string path = variables.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (!name.empty() && executable(candidate)) {
      return candidate;
    }
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace downpour::launch
