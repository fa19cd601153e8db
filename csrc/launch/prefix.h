#pragma once

#include <string>
#include <string_view>

#include "csrc/launch/target_text.h"

namespace downpour::launch {

// What stands before every line of a process: a template with {role}, {rank}, {host} and {time}. A value.
class Prefix {
 public:
  Prefix() = default;  // nothing
  // Errors: Error naming the field that is unknown.
  explicit Prefix(std::string_view pattern);

  // The prefix of one process; {time} stays to be filled in.
  Prefix of(Target who, std::string_view host) const;
  std::string text(std::string_view time) const;

 private:
  std::string pattern_;
};

}  // namespace downpour::launch
