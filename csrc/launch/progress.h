#pragma once

#include <map>
#include <string>
#include <vector>

#include "csrc/launch/scoreboard.h"

// What the user sees while the job runs. Pure.
namespace downpour::launch {

// "worker 0   step 1,234   1,523 samples/s   loss 0.4312   staleness 1.2": one line a worker, `most` lines in all.
std::vector<std::string> progress_lines(const std::map<int, WorkerScore>& workers, std::size_t most);

// The same in one line, for a log: "4,812 samples/s, steps 1,234 to 1,260, mean loss 0.43, staleness 1.2 (2 workers)".
std::string progress_line(const std::map<int, WorkerScore>& workers);

std::string grouped(std::int64_t number);     // "1,234,567"
std::string bytes_text(std::uint64_t bytes);  // "1.2 GB", powers of 1000

}  // namespace downpour::launch
