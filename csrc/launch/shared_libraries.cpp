#include "csrc/launch/shared_libraries.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <sstream>

#include "csrc/base/error.h"
#include "csrc/launch/child.h"

namespace downpour::launch {
namespace {

constexpr std::size_t kLargestPath = 4096;

template <typename T>
bool read_at(int file, std::uint64_t offset, T& into) {
  return ::pread(file, &into, sizeof(T), static_cast<off_t>(offset)) == sizeof(T);
}

// The loader that a dynamic program names, or nothing.
std::optional<std::string> loader_of(const std::string& program) {
  const Fd file(::open(program.c_str(), O_RDONLY | O_CLOEXEC));
  DOWNPOUR_CHECK(file, program, ": ", std::strerror(errno));
  Elf64_Ehdr header{};
  if (!read_at(file.get(), 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(file.get(), header.e_phoff + i * sizeof(segment), segment)) {
      return std::nullopt;
    }
    if (segment.p_type == PT_INTERP && segment.p_filesz > 0 && segment.p_filesz < kLargestPath) {
      std::string path(segment.p_filesz, '\0');
      const ssize_t count = ::pread(file.get(), path.data(), path.size(), static_cast<off_t>(segment.p_offset));
      return count > 0 ? std::optional(std::string(path.c_str())) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::string read_all(int pipe, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd waiting{.fd = pipe, .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) {
      return text;
    }
    const ssize_t count = ::read(pipe, buffer, sizeof(buffer));
    if (count <= 0) {
      return text;
    }
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

void add_line(const std::string& line, LibraryReport& report) {
  const auto first = line.find_first_not_of(" \t");
  const auto arrow = line.find(" => ");
  if (line.find("version `") != std::string::npos && line.find("not found") != std::string::npos) {
    report.missing.push_back(line.substr(first));
  } else if (first != std::string::npos && arrow != std::string::npos) {
    const bool missing = line.find("=> not found") != std::string::npos;
    const auto end = missing ? arrow : line.rfind(" (0x");
    (missing ? report.missing : report.found)
        .push_back(line.substr(first, end == std::string::npos ? end : end - first));
  }
}

}  // namespace

LibraryReport parse_loader_list(const std::string& text) {
  LibraryReport report;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    add_line(line, report);
  }
  return report;
}

LibraryReport shared_libraries(const std::string& program, const Variables& variables) {
  const auto loader = loader_of(program);
  if (!loader) {
    return {.dynamic = false, .found = {}, .missing = {}};
  }
  int ends[2];
  DOWNPOUR_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
  const Fd reading(ends[0]);
  Fd writing(ends[1]);
  ChildSpec spec;
  spec.program = *loader;
  spec.arguments = {*loader, program};
  // As ldd does it: unlike the loader's own --list this goes on after a library that is missing.
  Variables tracing = variables;
  tracing.set("LD_TRACE_LOADED_OBJECTS=1");
  spec.variables = tracing.entries();
  spec.standard_output = spec.standard_error = writing.get();
  Child child = Child::spawn(spec);
  writing.reset();
  const std::string text = read_all(reading.get(), std::chrono::steady_clock::now() + std::chrono::seconds(10));
  child.signal(SIGKILL);
  pollfd waiting{.fd = child.pidfd(), .events = POLLIN, .revents = 0};
  ::poll(&waiting, 1, 1000);
  child.reap();
  return parse_loader_list(text);
}

std::string library_fix(const std::string& name) {
  const auto starts = [&](const char* prefix) { return name.starts_with(prefix); };
  if (name.find("version `") != std::string::npos) {
    return "this library is older than the one the program was built with; build on this machine, or install a newer "
           "one";
  }
  if (starts("libtorch") || starts("libc10")) {
    return "add LibTorch's lib folder to the program's run path (-Wl,-rpath,FOLDER) or to LD_LIBRARY_PATH";
  }
  if (starts("libcu") || starts("libnv") || starts("libnccl")) {
    return "install the CUDA libraries that this LibTorch was built with (the toolkit, or the wheels nvidia-*), and "
           "add their lib folders to "
           "LD_LIBRARY_PATH";
  }
  if (starts("libgomp")) {
    return "on Debian: apt-get install libgomp1";
  }
  return "install the package that has it (apt-file search " + name + "), or add its folder to LD_LIBRARY_PATH";
}

}  // namespace downpour::launch
