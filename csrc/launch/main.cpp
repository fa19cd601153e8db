#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "csrc/launch/doctor.h"
#include "csrc/launch/options.h"
#include "csrc/launch/run.h"
#include "csrc/launch/serve.h"
#include "csrc/launch/server_role.h"
#include "csrc/launch/signals.h"

namespace downpour::launch {
namespace {

// Started without standard descriptors, our own pipes and sockets would take their numbers.
void open_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0 || fd > STDERR_FILENO) {
      ::close(fd);
      return;
    }
  }
}

std::string own_file() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  // A binary that was replaced while it runs has no name any more.
  return error || !std::filesystem::exists(path, error) ? "/proc/self/exe" : path.string();
}

struct Dispatch {
  const Variables& variables;
  int operator()(const RunOptions& options) const { return run_job(options, variables, own_file()); }
  int operator()(const ServeOptions& options) const { return serve(options); }
  int operator()(const ServerOptions& options) const { return run_server_role(options); }
  int operator()(const DoctorOptions& options) const { return run_doctor(options, variables); }
  int operator()(const Answer& answer) const {
    (answer.exit_code == 0 ? std::cout : std::cerr) << answer.text;
    return answer.exit_code;
  }
};

}  // namespace
}  // namespace downpour::launch

int main(int argc, char** argv, char** variables) try {
  using namespace downpour::launch;
  open_standard_descriptors();
  survive_file_size_limit();
  const Command command = parse_command(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  return std::visit(Dispatch{Variables(variables)}, command);
} catch (const std::exception& error) {
  std::fprintf(stderr, "downpour: %s\n", error.what());
  return 1;
}
