#include "csrc/launch/logging.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "csrc/base/log.h"

namespace downpour::launch {
namespace {

class OutputSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit OutputSink(Output& output) : output_(output) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const char* level = message.level == spdlog::level::info   ? ": "
                        : message.level == spdlog::level::warn ? " warning: "
                                                               : " error: ";
    output_.say(concat("downpour", level, std::string_view(message.payload.data(), message.payload.size()), "\n"));
  }
  void flush_() override {}

 private:
  Output& output_;
};

void forward(LogLevel level, std::string_view line) {
  const auto to = level == LogLevel::kInfo      ? spdlog::level::info
                  : level == LogLevel::kWarning ? spdlog::level::warn
                                                : spdlog::level::err;
  spdlog::log(to, "{}", line);
}

}  // namespace

Logging::Logging(Output& output) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("downpour", std::make_shared<OutputSink>(output)));
  set_log_sink(forward);
}

Logging::~Logging() {
  set_log_sink(nullptr);
  spdlog::set_default_logger(nullptr);
}

}  // namespace downpour::launch
