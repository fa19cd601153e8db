#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/ps/protocol_member.h"
#include "csrc/ps/server.h"
#include "csrc/transport/connection.h"
#include "csrc/transport/loop.h"

namespace downpour::ps {

// A server's link to the coordinator: joins, beats, and keeps what it was told until the server looks.
// Threads: its loop's.
class CoordinatorLink final : public transport::Receiver {
 public:
  CoordinatorLink(transport::Loop& loop, const ServerOptions& options);  // both outlive it

  // What was told so far.
  const std::optional<Joined>& joined() const { return joined_; }
  const std::optional<Agreement>& agreement() const { return agreement_; }
  std::vector<Fence> take_fences();
  bool take_question() { return std::exchange(asked_, false); }  // which leases are decided
  bool is_connected() const { return connection_ != nullptr; }
  bool is_finished() const { return finished_; }
  const std::optional<std::string>& abort_reason() const { return abort_reason_; }
  void check_alive() const;  // Errors: CommError when the coordinator is lost

  void say_ready(const ServerReady& ready);
  void report(const ServerStatus& status);

  void on_open(transport::Connection& connection, const transport::Welcome& welcome) override;
  void on_message(transport::Connection& connection, const transport::Message& message) override;
  void on_closed(transport::Connection& connection, std::exception_ptr why) override;

 private:
  const ServerOptions& options_;
  std::optional<Joined> joined_;
  std::optional<Agreement> agreement_;
  std::vector<Fence> fences_;
  bool asked_ = false;
  bool finished_ = false;
  std::optional<std::string> abort_reason_;
  bool lost_ = false;
  std::exception_ptr why_lost_;
  Writer out_;
  std::unique_ptr<transport::Connection> connection_;
};

}  // namespace downpour::ps
