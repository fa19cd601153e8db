#pragma once

#include <chrono>
#include <string>

// Calendar time, for people who read logs; nothing waits by it.
namespace downpour::launch {

using WallTime = std::chrono::system_clock::time_point;

std::string iso_text(WallTime time);     // UTC: "2026-11-30T04:38:05.123Z"
std::string time_of_day(WallTime time);  // local: "04:38:05"

}  // namespace downpour::launch
