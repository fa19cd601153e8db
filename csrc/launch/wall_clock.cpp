#include "csrc/launch/wall_clock.h"

#include <cstdio>
#include <ctime>

namespace downpour::launch {

std::string iso_text(WallTime time) {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const auto whole = static_cast<std::time_t>(since / 1000);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[64];
  const std::size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof(text) - length, ".%03dZ", static_cast<int>(since % 1000));
  return text;
}

std::string time_of_day(WallTime time) {
  const std::time_t whole = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&whole, &parts);
  char text[16];
  std::strftime(text, sizeof(text), "%H:%M:%S", &parts);
  return text;
}

}  // namespace downpour::launch
