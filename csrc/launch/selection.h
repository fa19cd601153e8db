#pragma once

#include <set>
#include <string>
#include <string_view>

#include "csrc/launch/target_text.h"

namespace downpour::launch {

// Which processes an option is about, written as a comma-separated list of `all`, `none`, `workers`, `servers`, global ranks
// `3` and `0-7` (workers), `worker:3`, `server:0`, `server:0-1`. A value.
class Selection {
 public:
  static Selection all();
  static Selection none() { return {}; }
  // Errors: Error naming the part that does not fit and the forms that do.
  static Selection parse(std::string_view text);

  bool contains(Target who) const;
  bool operator==(const Selection&) const = default;

 private:
  void add(std::string_view part);

  bool all_workers_ = false;
  bool all_servers_ = false;
  std::set<Target> chosen_;
};

}  // namespace downpour::launch
