#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collective/link.h"

namespace downpour::collective {

// Whoever runs calls and messages over the links. Threads, and what is allowed inside: as LinkOwner.
class LinksUser {
 public:
  virtual ~LinksUser() = default;
  virtual void on_links_open() = 0;  // to all ranks, once
  virtual void on_pieces() = 0;
  virtual void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) = 0;
  virtual void on_left(int rank) = 0;  // it ended its group without a complaint: only what still needs it fails
  // A rank is lost, or gave up and said why: the group is broken. Once.
  virtual void on_broken(std::exception_ptr why) = 0;
};

struct LinksOptions {
  std::uint64_t group = 0;  // random per group: a stranger on a reused port is refused
  int rank = 0;
  int world = 1;
  Duration connect_deadline = std::chrono::seconds(60);
  Duration heartbeat = std::chrono::milliseconds(100);
  Duration warn_after = std::chrono::seconds(2);
  Duration silence = std::chrono::seconds(10);  // a rank that is not heard for so long counts as lost
};

// A rank's links to all others: it accepts those of higher ranks and connects to lower ones.
// Threads: that of the loop on which its connections live. Blocks: never.
class Links final : public transport::Acceptor, private LinkOwner {
 public:
  Links(const LinksOptions& options, LinksUser& user);
  ~Links() override;

  // Begins to connect to the ranks below. `connect` makes the connection to a rank, as transport::connect_tcp.
  using Connect = std::function<std::unique_ptr<transport::Connection>(int rank, const transport::Hello& hello,
                                                                       transport::Receiver& receiver,
                                                                       const transport::ConnectOptions& options)>;
  void connect(const Connect& connect);
  bool are_open() const { return open_ == options_.world - 1; }
  std::vector<int> missing() const;  // ranks whose link is not open

  Link& to(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  std::span<Link* const> all() const { return pointers_; }
  const LinksOptions& options() const { return options_; }

  void fall_silent() { over_ = true; }  // the user hears nothing any more
  // Tells every rank that this one gives up, and why; then as fall_silent().
  void abort(std::string_view reason);
  void close();           // a group that has done its work: the others hear on_left()
  bool are_idle() const;  // nothing queued: the kernel or the rings have taken all

  transport::Admission admit(const transport::Hello& hello, transport::Medium medium) override;
  void on_connection(std::unique_ptr<transport::Connection> connection) override;

 private:
  void on_link_open(Link& link) override;
  void on_pieces(Link& link) override;
  void on_message(Link& link, std::uint16_t type, Bytes body, Bytes bulk) override;
  void on_abort(Link& link, std::string_view reason) override;
  void on_link_left(Link& link) override;
  void on_link_lost(Link& link, std::exception_ptr why) override;
  void count_open(Link& link);
  void break_down(std::exception_ptr why);
  std::string objection(const transport::Hello& hello);

  LinksOptions options_;
  LinksUser& user_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> pointers_;
  std::vector<bool> taken_;
  int open_ = 0;
  bool over_ = false;
};

}  // namespace downpour::collective
