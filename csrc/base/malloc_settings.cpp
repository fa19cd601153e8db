#include "csrc/base/malloc_settings.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "csrc/base/environment.h"
#include "csrc/base/error.h"

namespace downpour {
namespace {

struct Setting {
  const char* variable;
  int parameter;
  std::int64_t value;
};
constexpr std::array<Setting, 3> kSettings = {{{"MALLOC_MMAP_THRESHOLD_", M_MMAP_THRESHOLD, kMallocMmapThresholdBytes},
                                               {"MALLOC_TRIM_THRESHOLD_", M_TRIM_THRESHOLD, kMallocTrimThresholdBytes},
                                               {"MALLOC_TOP_PAD_", M_TOP_PAD, kMallocTopPadBytes}}};

bool any_sets(const std::vector<std::string>& variables, std::string_view name) {
  return std::any_of(variables.begin(), variables.end(), [&](const std::string& entry) { return sets(entry, name); });
}

}  // namespace

void keep_freed_memory() {
  if (std::getenv("GLIBC_TUNABLES") != nullptr) {
    return;
  }
  for (const Setting& setting : kSettings) {
    if (std::getenv(setting.variable) == nullptr) {
      // mallopt takes an int; the variables take any size.
      ::mallopt(setting.parameter,
                static_cast<int>(std::min<std::int64_t>(setting.value, std::numeric_limits<int>::max())));
    }
  }
}

std::vector<std::string> malloc_variables(const std::vector<std::string>& present) {
  std::vector<std::string> variables;
  if (any_sets(present, "GLIBC_TUNABLES")) {
    return variables;
  }
  for (const Setting& setting : kSettings) {
    if (!any_sets(present, setting.variable)) {
      variables.push_back(concat(setting.variable, "=", setting.value));
    }
  }
  return variables;
}

}  // namespace downpour
