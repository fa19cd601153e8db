#include "csrc/launch/server_role.h"

#include "csrc/base/environment.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/launch/exit_status.h"
#include "csrc/launch/run_folder.h"
#include "csrc/ps/server.h"

namespace downpour::launch {

int run_server_role(const ServerOptions& options) {
  try {
    const Environment environment = read_environment();
    DOWNPOUR_CHECK(environment.role == ProcessRole::kServer,
                   "this command belongs to `downpour run`; by hand: downpour serve --help");
    ps::ServerOptions server;
    server.index = environment.server_index;
    server.job = environment.job;
    server.coordinator = environment.coordinator;
    server.listen_fd = environment.listen_fd;
    server.snapshots.folder = snapshot_folder(environment.run_folder);
    server.snapshots.interval = options.snapshot_interval;
    server.insecure = environment.insecure;
    server.silence = environment.no_deadlines ? kNever : environment.silence.value_or(server.silence);
    return ps::run_server(server);
  } catch (const CommError& error) {
    log_error(error.what());
    return 1;
  } catch (const Error& error) {
    // Neither the world nor a bug: what it was given is not as it must be, and will not be next time.
    log_error(error.what());
    return kHopelessCode;
  } catch (const std::exception& error) {
    log_error(error.what());
    return 1;
  }
}

}  // namespace downpour::launch
