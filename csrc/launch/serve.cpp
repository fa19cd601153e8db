#include "csrc/launch/serve.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>

#include "csrc/base/error.h"
#include "csrc/base/fd.h"
#include "csrc/base/log.h"
#include "csrc/base/random.h"
#include "csrc/base/text.h"
#include "csrc/launch/exit_status.h"
#include "csrc/launch/loop_thread.h"
#include "csrc/launch/run_folder.h"
#include "csrc/ps/coordinator.h"
#include "csrc/ps/server.h"
#include "csrc/transport/tcp.h"

namespace downpour::launch {
namespace {

using transport::Exposure;

constexpr Duration kLastWords = std::chrono::seconds(2);

bool names_no_machine(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// Others are told this address as it stands.
void check_told(const std::string& address, const std::string& flag, const char* fix) {
  DOWNPOUR_CHECK(!names_no_machine(transport::parse_address(address).host), flag,
                 " is no address that workers can connect to; ", fix);
}

Fd bind_for(const char* flag, const std::string& address, Exposure exposure) {
  try {
    return transport::bind_socket(transport::parse_address(address), exposure);
  } catch (const Error& error) {
    throw Error(concat(flag, " ", address, ": ", error.what()));
  }
}

// The first signal that ends a job becomes something to read; the next one, whichever, finds the default action again.
class StopSignals {
 public:
  StopSignals() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    DOWNPOUR_CHECK(event_, "serve: eventfd: ", std::strerror(errno));
    handled_event = event_.get();
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    for (const int number : kNumbers) {
      ::sigaction(number, &action, nullptr);
    }
  }
  int fd() const { return event_.get(); }
  int number() const { return handled_signal; }  // 0: none has come
  void stop() const { write_to(event_.get()); }  // as such a signal does, from any thread
  int exit_code(int otherwise) const { return handled_signal != 0 ? 128 + handled_signal : otherwise; }

 private:
  static constexpr int kNumbers[] = {SIGINT, SIGTERM, SIGHUP};
  static void handle(int number) {
    const int before = errno;
    for (const int other : kNumbers) {
      ::signal(other, SIG_DFL);
    }
    handled_signal = number;
    write_to(handled_event);
    errno = before;
  }
  static void write_to(int event) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof(one));
  }
  static inline volatile std::sig_atomic_t handled_signal = 0;
  static inline volatile std::sig_atomic_t handled_event = -1;
  Fd event_;
};

// Notes of the coordinator become log lines.
class LoggingObserver final : public ps::CoordinatorObserver {
 public:
  void on_note(const std::string& text) override { log_info(text); }
  void on_server_silent(int server) override {
    log_warning("server ", server,
                " is silent; nobody but you can restart it: stop it and start it again with the same flags");
  }
};

// The coordinator on a thread of its own, beside the server.
class HostedCoordinator {
 public:
  // Where its thread fails the server ends too, after the reason has been logged.
  HostedCoordinator(const ServeOptions& options, const StopSignals& signals, Fd socket,
                    std::vector<std::string> endpoints, std::uint64_t job)
      : coordinator_(loop_, job, membership(options), std::move(endpoints), observer_),
        listener_(transport::listen_tcp(loop_, std::move(socket), coordinator_, transport::SharedMemory::kNever,
                                        transport::exposure_of(options))) {
    loop_.watch(signals.fd(), EPOLLIN, [this, &signals](std::uint32_t) {
      loop_.unwatch(signals.fd());
      coordinator_.abort(
          concat("server 0, which holds the job together, was ended by ", signal_name(signals.number())));
    });
    thread_ = std::make_unique<LoopThread>(loop_, [&signals](const std::string& why) {
      log_error("serve: the coordinator has failed, the server ends: ", why);
      signals.stop();
    });
  }
  bool has_failed() const { return thread_->failed(); }
  // Tells everybody why this server ends before its time.
  void server_failed(const std::string& why) {
    const auto told = std::make_shared<std::promise<void>>();
    loop_.post([this, why, told] {
      coordinator_.abort(concat("server 0, which holds the job together, failed: ", why));
      told->set_value();
    });
    told->get_future().wait_for(kLastWords);  // its thread may have failed as well
  }

 private:
  static ps::MembershipOptions membership(const ServeOptions& options) {
    ps::MembershipOptions result;
    result.workers = options.workers;
    result.servers = options.servers;
    result.silence = options.silence;
    return result;
  }

  SteadyClock clock_;
  transport::Loop loop_{clock_};
  LoggingObserver observer_;
  ps::Coordinator coordinator_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<LoopThread> thread_;
};

std::string coordinator_default(const std::string& address) {
  return transport::Address{.host = transport::parse_address(address).host, .port = 0}.text();
}

ps::ServerOptions server_options(const ServeOptions& options, std::uint64_t job, const std::string& coordinator,
                                 int socket, int stop_fd) {
  ps::ServerOptions result;
  result.stop_fd = stop_fd;
  result.index = options.index;
  result.job = job;
  result.coordinator = coordinator;
  result.listen_fd = socket;
  result.snapshots.folder = options.run_folder;
  result.snapshots.interval = options.snapshot_interval;
  result.insecure = options.insecure;
  result.silence = options.silence;
  return result;
}

int serve_first(const ServeOptions& options, Fd socket, const StopSignals& signals) {
  const std::string own = transport::local_address(socket.get()).text();
  auto endpoints = options.endpoints.empty() ? std::vector{own} : options.endpoints;
  const bool given = !options.endpoints.empty();
  for (const std::string& told : endpoints) {
    check_told(told, given ? concat("--endpoints ", told) : concat("--address ", options.address),
               given ? "name each server's machine" : "also pass --endpoints HOST:PORT");
  }
  const std::string wanted = options.coordinator.empty() ? coordinator_default(options.address) : options.coordinator;
  Fd coordinator_socket = bind_for("--coordinator", wanted, transport::exposure_of(options));
  transport::Address coordinator = transport::local_address(coordinator_socket.get());
  if (names_no_machine(coordinator.host)) {
    coordinator.host = transport::parse_address(endpoints.front()).host;
  }
  const std::uint64_t job = options.job != 0 ? options.job : system_random();
  std::cout << serve_instructions(options, coordinator.text(), endpoints, job) << std::flush;
  HostedCoordinator hosted(options, signals, std::move(coordinator_socket), std::move(endpoints), job);
  try {
    const int status = ps::run_server(server_options(options, job, coordinator.text(), socket.release(), signals.fd()));
    return hosted.has_failed() ? 1 : signals.exit_code(status);
  } catch (const std::exception& error) {
    hosted.server_failed(error.what());
    throw;
  }
}

}  // namespace

std::string serve_instructions(const ServeOptions& options, const std::string& coordinator,
                               const std::vector<std::string>& endpoints, std::uint64_t job) {
  const std::string more = concat(" --silence ", seconds(options.silence), options.insecure ? " --insecure" : "");
  std::string text =
      concat("# server 0 of ", options.servers, " at ", endpoints.front(), ", coordinator at ", coordinator, "\n");
  text += concat("# for each of the ", options.workers, options.workers == 1 ? " worker" : " workers",
                 ", with RANK from 0:\n");
  text += concat("export DOWNPOUR_ROLE=worker WORLD_SIZE=", options.workers, " DOWNPOUR_JOB=", hexadecimal(job),
                 " DOWNPOUR_COORDINATOR=", coordinator, " DOWNPOUR_SERVERS=", options.servers,
                 " DOWNPOUR_SERVER_ENDPOINTS=", join(endpoints), " DOWNPOUR_SILENCE=", seconds(options.silence),
                 " DOWNPOUR_INSECURE=", options.insecure ? 1 : 0, "\nRANK=0 program\n");
  for (int index = 1; index < options.servers; ++index) {
    text += concat(index == 1 ? "# the other servers:\n" : "", "downpour serve --index ", index, " --servers ",
                   options.servers, " --workers ", options.workers, " --address ",
                   endpoints.at(static_cast<std::size_t>(index)), " --coordinator ", coordinator, " --job ",
                   hexadecimal(job), more, "\n");
  }
  return text;
}

int serve(const ServeOptions& options) {
  try {
    Fd socket = bind_for("--address", options.address, transport::exposure_of(options));
    if (options.insecure) {
      log_warning(kInsecureText);
    }
    const ServerLocks locks =
        options.run_folder.empty() ? ServerLocks() : lock_for_server(options.run_folder, options.index);
    const StopSignals signals;
    if (options.index == 0) {
      return serve_first(options, std::move(socket), signals);
    }
    return signals.exit_code(
        ps::run_server(server_options(options, options.job, options.coordinator, socket.release(), signals.fd())));
  } catch (const CommError& error) {
    log_error("serve: ", error.what());
    return 1;
  } catch (const Error& error) {
    log_error("serve: ", error.what());
    return kUsageError;
  }
}

}  // namespace downpour::launch
