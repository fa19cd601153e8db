#pragma once

#include <string_view>

#include "csrc/base/error.h"

namespace downpour {

enum class LogLevel { kInfo, kWarning, kError };

// Where log lines go; the default writes "downpour: ..." lines to stderr, one write() each.
// Threads: any; the sink is called from the thread that logs and must not block.
using LogSink = void (*)(LogLevel level, std::string_view line);
void set_log_sink(LogSink sink);  // nullptr restores the default
void log_line(LogLevel level, std::string_view line);

template <typename... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::kInfo, concat(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::kWarning, concat(parts...));
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, concat(parts...));
}

}  // namespace downpour
