#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace downpour::launch {

// Environment variables as a list of NAME=VALUE, to be handed to a child. A value; it reads nothing by itself.
class Variables {
 public:
  Variables() = default;
  explicit Variables(std::vector<std::string> entries) : entries_(std::move(entries)) {}
  explicit Variables(const char* const* entries);  // as main() gets them: ends with nullptr

  std::optional<std::string> get(std::string_view name) const;
  void set(const std::string& entry);  // "NAME=VALUE": replaces
  void set(const std::vector<std::string>& entries);
  void remove(std::string_view name);
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

// The file that execvp() would start, or nothing. A name with a slash is taken as it is.
std::optional<std::string> find_program(const std::string& name, const Variables& variables);

}  // namespace downpour::launch
