#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "csrc/launch/options.h"
#include "csrc/launch/variables.h"

namespace downpour::launch {

// One thing looked at.
struct Check {
  std::string what;  // "shared memory (sealed memfd)"
  bool good = true;
  std::string found;  // what was seen: a number, an error
  std::string fix;    // what to do when it is not good
};

// ---- one function a thing; none throws, none leaves anything behind --------------------------------------------------
Check check_kernel();  // pidfd, signalfd, subreaper
Check check_memfd();
Check check_descriptor_passing();  // over an abstract local socket
Check check_eventfd();
Check check_open_files();
Check check_cores();
Check check_memory();
Check check_loopback();
Check check_clock();
Check check_disk(const std::filesystem::path& folder);
Check check_libtorch(const Variables& variables);
std::vector<Check> check_libraries(const std::string& program, const Variables& variables);

// "ok    what: found" or "FAIL  what: found\n      fix: ...". Pure.
std::string to_text(const Check& check);

// `downpour doctor`: prints all checks to standard output; 0 when all are good, else 1.
int run_doctor(const DoctorOptions& options, const Variables& variables);

}  // namespace downpour::launch
