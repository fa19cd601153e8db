#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>

#include "csrc/launch/doctor.h"
#include "csrc/launch/machine.h"
#include "csrc/launch/progress.h"
#include "csrc/launch/sink.h"
#include "csrc/transport/descriptors.h"
#include "csrc/transport/local_socket.h"
#include "csrc/transport/tcp.h"

namespace downpour::launch {
namespace {

constexpr rlim_t kEnoughOpenFiles = 1024;
constexpr std::uint64_t kEnoughSpaceBytes = 1ull << 30;
constexpr std::size_t kTrialBytes = 32 << 20;

Check failed(std::string what, const char* call, std::string fix) {
  return {std::move(what), false, concat(call, ": ", std::strerror(errno)), std::move(fix)};
}

std::pair<Fd, Fd> connected_local_sockets() {
  const transport::LocalListener listener = transport::listen_local();
  Fd client = transport::connect_local(listener.name);
  DOWNPOUR_CHECK(client, "abstract local socket: ", std::strerror(errno));
  return {std::move(client), Fd(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

}  // namespace

Check check_kernel() {
  const std::string what = "process control (pidfd, signalfd, subreaper)";
  const std::string fix = "Linux 5.3 or newer is needed; in a container, its seccomp profile must allow these calls";
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  sigset_t none;
  ::sigemptyset(&none);
  const Fd signals(::signalfd(-1, &none, SFD_CLOEXEC));
  int subreaper = 0;
  const bool good = pidfd && signals && ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper) == 0;
  return good ? Check{what, true, "", ""} : failed(what, "pidfd_open, signalfd or prctl", fix);
}

Check check_memfd() {
  const std::string what = "shared memory (sealed memfd)";
  const std::string fix = "the kernel or a seccomp profile forbids it; jobs then use TCP, which is slower";
  const Fd memory(::memfd_create("downpour-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) {
    return failed(what, "memfd_create", fix);
  }
  if (::ftruncate(memory.get(), 4096) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed(what, "ftruncate or F_ADD_SEALS", fix);
  }
  const bool sealed = ::ftruncate(memory.get(), 0) != 0 && errno == EPERM;
  return {what, sealed, sealed ? "" : "a sealed memfd could be shrunk", fix};
}

Check check_descriptor_passing() {
  const std::string what = "descriptors over an abstract local socket";
  try {
    const auto [one, other] = connected_local_sockets();
    const int passed = one.get();
    transport::send_descriptors(one.get(), as_bytes("x"), {&passed, 1});
    const auto received = transport::receive_descriptors(other.get(), 16, 1);
    return {what, received.descriptors.size() == 1, "",
            "the sandbox drops descriptors (SCM_RIGHTS); jobs then use TCP"};
  } catch (const Error& error) {
    return {what, false, error.what(), "allow local sockets in the sandbox; jobs then use TCP, which is slower"};
  }
}

Check check_eventfd() {
  const std::string what = "doorbells (eventfd)";
  const Fd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::uint64_t one = 1;
  if (!bell || ::write(bell.get(), &one, sizeof(one)) != sizeof(one)) {
    return failed(what, "eventfd", "the kernel or a seccomp profile forbids it");
  }
  pollfd waiting{.fd = bell.get(), .events = POLLIN, .revents = 0};
  return {what, ::poll(&waiting, 1, 0) == 1, "", "the kernel or a seccomp profile forbids it"};
}

Check check_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return {"open files", limit.rlim_cur >= kEnoughOpenFiles, concat(limit.rlim_cur, " allowed"),
          concat("raise the limit before starting jobs: ulimit -n ", kEnoughOpenFiles, " (the hard limit is ",
                 limit.rlim_max, ")")};
}

Check check_cores() {
  const int cores = usable_cores();
  return {"cores", true, concat(cores, " usable (affinity and control group)"), ""};
}

Check check_memory() {
  const auto group = memory_group();
  const std::string limit =
      group && group->limit_bytes ? bytes_text(static_cast<std::uint64_t>(*group->limit_bytes)) : "none";
  const auto total =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {"memory", true, concat(bytes_text(total), ", control group's limit: ", limit), ""};
}

Check check_loopback() {
  const std::string what = "TCP on 127.0.0.1";
  try {
    const Fd listening = transport::bind_socket({.host = "127.0.0.1", .port = 0}, transport::Exposure::kLoopbackOnly);
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size);
    const Fd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    timeval deadline{.tv_sec = 3, .tv_usec = 0};
    ::setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &deadline, sizeof(deadline));
    const bool good = ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0;
    return {what, good, good ? "" : std::strerror(errno),
            "bring the loopback device up: ip link set lo up; check the firewall"};
  } catch (const Error& error) {
    return {what, false, error.what(), "bring the loopback device up: ip link set lo up"};
  }
}

Check check_clock() {
  timespec resolution{};
  ::clock_getres(CLOCK_MONOTONIC, &resolution);
  const bool fine = resolution.tv_sec == 0 && resolution.tv_nsec <= 1'000'000;
  return {"monotonic clock", fine, concat("resolution ", resolution.tv_sec * 1'000'000'000 + resolution.tv_nsec, " ns"),
          "the kernel lacks high-resolution timers; heartbeats of 100 ms need them"};
}

Check check_disk(const std::filesystem::path& folder) {
  const std::string what = "disk of " + folder.string();
  const std::string fix = "free some space, or pass --run-folder with a folder on another disk";
  struct statvfs space {};
  Fd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file || ::statvfs(folder.c_str(), &space) != 0) {
    return failed(what, "open", "make the folder writable, or pass --run-folder with another one");
  }
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (free_bytes < kEnoughSpaceBytes) {
    return {what, false, bytes_text(free_bytes) + " free", fix};
  }
  const auto begun = std::chrono::steady_clock::now();
  Sink sink(file.get());
  if (!sink.write(std::string(kTrialBytes, 'x')) || ::fdatasync(file.get()) != 0) {
    return {what, false, sink.why().empty() ? std::strerror(errno) : sink.why(), fix};
  }
  const double took = seconds(std::chrono::steady_clock::now() - begun);
  return {what, true,
          concat(bytes_text(free_bytes), " free, writes ", bytes_text(static_cast<std::uint64_t>(kTrialBytes / took)),
                 "/s"),
          ""};
}

Check check_libtorch(const Variables& variables) {
  const std::string library = "libtorch_cpu.so";
  std::string folders = variables.get("LD_LIBRARY_PATH").value_or("");
  while (!folders.empty()) {
    const auto end = folders.find(':');
    const auto path = std::filesystem::path(folders.substr(0, end)) / library;
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
      return {"LibTorch", true, path.string() + " (LD_LIBRARY_PATH)", ""};
    }
    folders = end == std::string::npos ? "" : folders.substr(end + 1);
  }
  std::ifstream cache("/etc/ld.so.cache", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(cache)), std::istreambuf_iterator<char>());
  const bool known = text.find(library) != std::string::npos;
  return {"LibTorch", true,
          known ? "known to the loader"
                : "not where the loader looks by itself; programs with a run path do not need that "
                  "(downpour doctor PROGRAM tells)",
          ""};
}

}  // namespace downpour::launch
