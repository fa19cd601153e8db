#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/ps/membership.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/loop.h"

namespace downpour::ps {

// What the launcher sees of the job. Threads: the coordinator's. Must not destroy the coordinator.
class CoordinatorObserver {
 public:
  virtual ~CoordinatorObserver() = default;
  virtual void on_progress(int worker, const Progress& progress) { (void)worker, (void)progress; }
  virtual void on_server_status(const ServerStatus& status) { (void)status; }
  virtual void on_server_silent(int server) { (void)server; }
  virtual void on_note(const std::string& text) { (void)text; }
};

// Membership on a transport: one thread, one loop, no decision of its own. It is an Acceptor: whoever hosts it (the launcher, or
// a server that runs by hand) listens with it on the same loop.
// Threads: its loop's. Owns: the connections of all members. Blocks: never. Errors: what a member does wrong ends that member's
// connection, with the reason told to it and noted.
class Coordinator final : public transport::Acceptor, public transport::Receiver {
 public:
  static constexpr std::uint64_t kLargestBodyBytes = 16ull << 20;  // an Agreement of very many parameters

  // `server_addresses`: "host:port" by server index. All references must outlive it.
  Coordinator(transport::Loop& loop, std::uint64_t job, MembershipOptions options,
              std::vector<std::string> server_addresses, CoordinatorObserver& observer);
  ~Coordinator() override;

  const Membership& membership() const;
  // A host that starts the members saw this one's process end, perhaps before its connection did. The index is free again.
  void process_ended(Target member);
  // No process will come again for this worker, whether it succeeded, failed, or never joined: the others' finish() no longer
  // waits for it. A host that starts workers must say so of each that it will not start again.
  void gone(int worker);
  void abort(const std::string& reason);  // tells every member, now and later; their calls fail with it

  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override;
  void on_connection(std::unique_ptr<transport::Connection> connection) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace downpour::ps
