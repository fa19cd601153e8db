#include "csrc/launch/doctor.h"

#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <iostream>

#include "csrc/base/version.h"
#include "csrc/launch/shared_libraries.h"
#include "csrc/transport/frame.h"

namespace downpour::launch {
namespace {

std::string versions_text() {
  utsname system{};
  ::uname(&system);
  return concat("downpour ", kVersion, ", protocol ", transport::kProtocolVersion, ", ", system.sysname, " ",
                system.release, ", glibc ", ::gnu_get_libc_version(), "\n");
}

}  // namespace

std::string to_text(const Check& check) {
  return concat(check.good ? "ok    " : "FAIL  ", check.what, check.found.empty() ? "" : ": ", check.found, "\n",
                check.good || check.fix.empty() ? "" : concat("      fix: ", check.fix, "\n"));
}

std::vector<Check> check_libraries(const std::string& name, const Variables& variables) {
  const auto program = find_program(name, variables);
  if (!program) {
    const bool path = name.find('/') != std::string::npos;
    return {{"program " + name, false, "not found or not executable",
             path ? "check the path; chmod +x makes a file executable"
                  : "write its path, e.g. ./" + name + "; chmod +x makes it executable"}};
  }
  std::vector<Check> checks;
  try {
    const LibraryReport report = shared_libraries(*program, variables);
    const std::string found = report.dynamic
                                  ? concat(report.found.size(), " libraries found, ", report.missing.size(), " missing")
                                  : "a script or a static program, which needs no libraries";
    checks.push_back({"libraries of " + *program, report.missing.empty(), found, ""});
    for (const std::string& missing : report.missing) {
      checks.push_back({"library " + missing, false, "not found", library_fix(missing)});
    }
  } catch (const Error& error) {
    checks.push_back({"libraries of " + *program, false, error.what(), "check the file's permissions"});
  }
  return checks;
}

int run_doctor(const DoctorOptions& options, const Variables& variables) {
  std::cout << versions_text();
  const std::filesystem::path folder =
      options.folder.empty() ? std::filesystem::path(variables.get("TMPDIR").value_or("/tmp")) : options.folder;
  std::vector<Check> checks = {check_kernel(),
                               check_memfd(),
                               check_descriptor_passing(),
                               check_eventfd(),
                               check_open_files(),
                               check_cores(),
                               check_memory(),
                               check_loopback(),
                               check_clock(),
                               check_disk(folder),
                               check_libtorch(variables)};
  if (!options.program.empty()) {
    const auto more = check_libraries(options.program, variables);
    checks.insert(checks.end(), more.begin(), more.end());
  }
  for (const Check& check : checks) {
    std::cout << to_text(check);
  }
  const auto bad = std::count_if(checks.begin(), checks.end(), [](const Check& check) { return !check.good; });
  std::cout << (bad == 0 ? "all is well\n" : concat(bad, bad == 1 ? " problem\n" : " problems\n"));
  return bad == 0 ? 0 : 1;
}

}  // namespace downpour::launch
