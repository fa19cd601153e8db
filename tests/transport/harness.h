#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/transport/connection.h"
#include "csrc/transport/tcp.h"

// A listener and its clients over any medium, in one thread and under one clock that stands still until the test advances it.
namespace downpour::transport {

enum class Kind { kInproc, kSharedMemory, kTcpIpv4, kTcpIpv6 };
std::string_view name(Kind kind);

constexpr std::uint16_t kNote = 100;  // a type of the layer above

// "PeerLostError: worker 1 ...", "goodbye" for nullptr.
std::string describe(const std::exception_ptr& error);

// Writes down what it hears, and does what the test wants inside the callbacks.
class Recorder : public Receiver {
 public:
  struct Seen {
    Connection* connection;
    std::uint16_t type;
    std::string body;
    std::uint64_t bulk_offset;
    std::uint64_t bulk_bytes;
    bool takes_credit;
  };
  void on_open(Connection& connection, const Welcome& welcome) override;
  void on_message(Connection& connection, const Message& message) override;
  void on_credit(Connection& connection) override;
  void on_closed(Connection& connection, std::exception_ptr why) override;

  bool keeps = true;  // false: counts only
  std::uint64_t messages = 0;
  std::vector<Seen> seen;
  int opened = 0;
  int credited = 0;
  int closed = 0;
  std::string why;
  Welcome welcome;
  std::function<void(Connection&)> when_opened;
  std::function<void(Connection&, const Message&)> when_message;
  std::function<void(Connection&)> when_credited;
  std::function<void(Connection&)> when_closed;
};

// Lets in whoever comes, on the terms of `answer`, and keeps the connections.
class Door : public Acceptor {
 public:
  Door();
  Admission admit(const Hello& hello, Medium medium) override;
  void on_connection(std::unique_ptr<Connection> connection) override;

  Admission answer;  // 1 MiB and 64 KiB windows, 4 credits, heard by `receiver`
  Recorder receiver;
  std::vector<Hello> hellos;
  std::vector<Medium> media;
  std::vector<std::unique_ptr<Connection>> connections;
  std::function<void()> when_asked;
};

class Harness {
 public:
  virtual ~Harness() = default;
  virtual std::unique_ptr<Listener> listen(Acceptor& acceptor) = 0;
  virtual std::unique_ptr<Connection> connect(const Hello& hello, Receiver& receiver,
                                              const ConnectOptions& options = {}) = 0;
  // Handle what is there, without waiting; false when there was nothing.
  virtual bool turn_server() = 0;
  virtual bool turn_client() = 0;

  bool turn();  // both
  // Turns until `done`; a generous limit of real time ends a test that hangs.
  bool until(const std::function<bool()>& done);
  // Turns until nothing has happened for a while: for what must not happen. Sockets of one machine deliver at once.
  void settle();
  // Goes on in small steps of time, everybody turning, or only one side.
  void pass(Duration time, const std::function<void()>& turn_them);
  void pass(Duration time);

  ManualClock clock;
};
std::unique_ptr<Harness> make_harness(Kind kind);

// One client of one door, open: what most tests start from.
class Joined {
 public:
  explicit Joined(Kind kind) : Joined(kind, Admission{}) {}
  // With a receiver of its own when `answer` is not accepted.
  Joined(Kind kind, const Admission& answer, const ConnectOptions& options = {});

  Connection& server() { return *door.connections.at(0); }

  std::unique_ptr<Harness> harness;
  Door door;
  Recorder recorder;  // the client's
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connection> client;
};

Hello hello_of_worker(int rank);

// Lines that would have gone to stderr while it lives.
class CapturedLog {
 public:
  CapturedLog();
  ~CapturedLog();
  std::string text() const;
  int lines() const;
};

}  // namespace downpour::transport
