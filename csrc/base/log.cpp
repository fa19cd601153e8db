#include "csrc/base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

namespace downpour {
namespace {

void write_to_stderr(LogLevel level, std::string_view line) {
  const std::string text = concat("downpour",
                                  level == LogLevel::kInfo      ? ": "
                                  : level == LogLevel::kWarning ? " warning: "
                                                                : " error: ",
                                  line, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::atomic<LogSink> g_sink{write_to_stderr};

}  // namespace

void set_log_sink(LogSink sink) { g_sink = sink != nullptr ? sink : write_to_stderr; }

void log_line(LogLevel level, std::string_view line) { g_sink.load()(level, line); }

}  // namespace downpour
