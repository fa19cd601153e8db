#include "tests/transport/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/transport/inproc.h"

namespace downpour::transport {
namespace {

constexpr auto kLongestWait = std::chrono::seconds(120);

std::string text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

class InprocHarness final : public Harness {
 public:
  std::unique_ptr<Listener> listen(Acceptor& acceptor) override { return network_.listen("server", acceptor); }
  std::unique_ptr<Connection> connect(const Hello& hello, Receiver& receiver, const ConnectOptions& options) override {
    return network_.connect("server", hello, receiver, options);
  }
  bool turn_server() override { return deliver(0); }
  bool turn_client() override { return deliver(1); }

 private:
  // What waits now, not what comes of it: so that neither side runs ahead. Timers are both sides'.
  bool deliver(int direction) {
    bool any = loop_.run_once(loop_.now());
    for (int link = 0; link < network_.links(); ++link) {
      for (int left = network_.waiting(link, direction); left > 0 && network_.deliver(link, direction); --left) {
        any = true;
      }
    }
    return any;
  }

  Loop loop_{clock};
  InprocNetwork network_{&loop_};
};

class SocketHarness final : public Harness {
 public:
  explicit SocketHarness(Kind kind)
      : host_(kind == Kind::kTcpIpv6 ? "::1" : "127.0.0.1"),
        shared_memory_(kind == Kind::kSharedMemory ? SharedMemory::kRequire : SharedMemory::kNever) {}

  std::unique_ptr<Listener> listen(Acceptor& acceptor) override {
    Fd socket = bind_socket({host_, 0}, Exposure::kLoopbackOnly);
    address_ = local_address(socket.get());
    return listen_tcp(server_loop_, std::move(socket), acceptor, shared_memory_, Exposure::kLoopbackOnly);
  }
  std::unique_ptr<Connection> connect(const Hello& hello, Receiver& receiver, const ConnectOptions& options) override {
    if (address_.port == 0) {
      const Fd gone = bind_socket({host_, 0}, Exposure::kLoopbackOnly);
      address_ = local_address(gone.get());
    }
    return connect_tcp(client_loop_, address_, hello, receiver, shared_memory_, Exposure::kLoopbackOnly, options);
  }
  bool turn_server() override { return server_loop_.run_once(clock.now()); }
  bool turn_client() override { return client_loop_.run_once(clock.now()); }

 private:
  std::string host_;
  SharedMemory shared_memory_;
  Address address_;
  Loop server_loop_{clock};
  Loop client_loop_{clock};
};

std::mutex g_mutex;
std::vector<std::string> g_lines;  // guarded by g_mutex

void keep_line(LogLevel, std::string_view line) {
  const std::lock_guard lock(g_mutex);
  g_lines.emplace_back(line);
}

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::kInproc: return "inproc";
    case Kind::kSharedMemory: return "shm";
    case Kind::kTcpIpv4: return "tcp4";
    case Kind::kTcpIpv6: return "tcp6";
  }
  return "";
}

std::string describe(const std::exception_ptr& error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
    return "goodbye";
  } catch (const PeerLostError& lost) {
    return concat("PeerLostError: ", lost.what());
  } catch (const ProtocolError& protocol) {
    return concat("ProtocolError: ", protocol.what());
  } catch (const TimeoutError& timeout) {
    return concat("TimeoutError: ", timeout.what());
  } catch (const CommError& comm) {
    return concat("CommError: ", comm.what());
  } catch (const std::exception& other) {
    return concat("another: ", other.what());
  }
}

void Recorder::on_open(Connection& connection, const Welcome& the_welcome) {
  ++opened;
  welcome = the_welcome;
  if (when_opened) {
    when_opened(connection);
  }
}

void Recorder::on_message(Connection& connection, const Message& message) {
  ++messages;
  if (keeps) {
    seen.push_back({&connection, message.type, text_of(message.body), message.bulk_offset, message.bulk.size(),
                    message.takes_credit});
  }
  if (when_message) {
    when_message(connection, message);
  }
}

void Recorder::on_credit(Connection& connection) {
  ++credited;
  if (when_credited) {
    when_credited(connection);
  }
}

void Recorder::on_closed(Connection& connection, std::exception_ptr error) {
  ++closed;
  why = describe(error);
  if (when_closed) {
    when_closed(connection);
  }
}

Door::Door() {
  answer.accepted = true;
  answer.welcome.to_acceptor_window_bytes = 1 << 20;
  answer.welcome.to_connector_window_bytes = 1 << 16;
  answer.welcome.credits = 4;
  answer.receiver = &receiver;
}

Admission Door::admit(const Hello& hello, Medium medium) {
  hellos.push_back(hello);
  media.push_back(medium);
  if (when_asked) {
    when_asked();
  }
  return answer;
}

void Door::on_connection(std::unique_ptr<Connection> connection) { connections.push_back(std::move(connection)); }

bool Harness::turn() {
  const bool server = turn_server();
  const bool client = turn_client();
  return server || client;
}

bool Harness::until(const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + kLongestWait;
  while (!done()) {
    if (!turn() && std::chrono::steady_clock::now() > limit) {
      return false;
    }
  }
  return true;
}

void Harness::settle() {
  for (int quiet = 0; quiet < 20;) {
    quiet = turn() ? 0 : quiet + 1;
  }
}

void Harness::pass(Duration time, const std::function<void()>& turn_them) {
  constexpr Duration kStep = std::chrono::milliseconds(10);
  for (Duration passed{}; passed < time; passed += kStep) {
    clock.advance(kStep);
    turn_them();
  }
}

void Harness::pass(Duration time) {
  pass(time, [this] { settle(); });
}

std::unique_ptr<Harness> make_harness(Kind kind) {
  if (kind == Kind::kInproc) {
    return std::make_unique<InprocHarness>();
  }
  return std::make_unique<SocketHarness>(kind);
}

Joined::Joined(Kind kind, const Admission& answer, const ConnectOptions& options) : harness(make_harness(kind)) {
  if (answer.accepted) {
    door.answer = answer;
    door.answer.receiver = &door.receiver;
  }
  listener = harness->listen(door);
  client = harness->connect(hello_of_worker(1), recorder, options);
  EXPECT_TRUE(harness->until([this] { return recorder.opened + recorder.closed > 0; })) << "the handshake hangs";
  EXPECT_EQ(recorder.opened, 1) << recorder.why;
}

Hello hello_of_worker(int rank) {
  Hello hello;
  hello.job = 7;
  hello.role = Role::kWorker;
  hello.rank = rank;
  return hello;
}

CapturedLog::CapturedLog() {
  const std::lock_guard lock(g_mutex);
  g_lines.clear();
  set_log_sink(keep_line);
}

CapturedLog::~CapturedLog() { set_log_sink(nullptr); }

std::string CapturedLog::text() const {
  const std::lock_guard lock(g_mutex);
  std::string text;
  for (const auto& line : g_lines) {
    text += line + "\n";
  }
  return text;
}

int CapturedLog::lines() const {
  const std::lock_guard lock(g_mutex);
  return static_cast<int>(g_lines.size());
}

}  // namespace downpour::transport
