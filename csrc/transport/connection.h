#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/bytes.h"
#include "csrc/base/error.h"
#include "csrc/transport/handshake.h"
#include "csrc/transport/loop.h"

// Ordered, reliable, framed messages between two processes; the one interface over inproc, shared memory and TCP.
//
// Each direction has a *window*: memory of the receiver that only the sender's put() writes. Over shared memory both map the
// same pages, so a sender may fill its outgoing() window in place and put() moves nothing; over TCP the bytes are received
// straight into the window. Who may write where in the window is the agreement of the layer above.
namespace downpour::transport {

// What arrives. The spans are valid during the callback; the bulk stays where it is in the window afterwards.
struct Message {
  std::uint16_t type = 0;
  Bytes body;
  std::uint64_t bulk_offset = 0;
  MutableBytes bulk;          // inside the receiver's window; empty when the message has none
  bool takes_credit = false;  // the receiver gives it back by grant() when it has dealt with the bulk
};

enum class Credit { kNone, kTake };
enum class Side { kAcceptor, kConnector };
enum class Medium { kInproc, kSharedMemory, kTcp };
std::string_view name(Medium medium);

class Connection;

// The layer above. Threads: called on the thread of the connection's loop, never from inside a call of ours. May send, close
// and destroy the connection from inside. A ProtocolError that on_message throws ends the connection as a malformed frame
// would; other exceptions leave through the loop.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void on_open(Connection& connection, const Welcome& welcome) {
    (void)connection, (void)welcome;
  }  // connecting side
  virtual void on_message(Connection& connection, const Message& message) = 0;
  virtual void on_credit(Connection& connection) { (void)connection; }  // credits came back
  // Once, the last call; not called after our own close(). `why`: PeerLostError (end of file, silence), ProtocolError
  // (bytes that are no frame, refusal), TimeoutError (handshake), CommError (the handshake's terms cannot be kept here), nullptr
  // when the peer said goodbye.
  virtual void on_closed(Connection& connection, std::exception_ptr why) = 0;
};

// Threads: those of its loop, one. Owns: socket, segment, queues. Blocks: never.
class Connection {
 public:
  virtual ~Connection() = default;  // closes

  virtual Medium medium() const = 0;
  virtual std::string peer() const = 0;    // "worker 1 (shm)", "server 0 at 127.0.0.1:4000 (tcp)": for messages
  virtual const Hello& hello() const = 0;  // the connecting side's

  // Where put() will place bytes: over shared memory the peer's window itself, otherwise empty.
  virtual MutableBytes outgoing() = 0;
  virtual MutableBytes incoming() = 0;  // our window, for the peer's bytes
  virtual std::uint64_t outgoing_window_bytes() const = 0;

  // Queues a message. The body is copied. Errors: Error when the body exceeds the limit, before on_open, or after close. Once
  // the peer is lost, and until on_closed says so, what is sent is dropped.
  virtual void send(std::uint16_t type, Bytes body) = 0;
  // The same with bulk bytes for [window_offset, +bulk.size()) of the peer's window. `bulk` must stay unchanged until the
  // layer above hears that the peer has dealt with it, or until keep_bulk() (see lasting_bulk, too). Bulk that lies at
  // outgoing() + window_offset already is not moved. Errors: Error outside the window, or without a credit to take; nothing is sent.
  virtual void put(std::uint16_t type, Bytes body, Bytes bulk, std::uint64_t window_offset, Credit credit) = 0;

  // Copies the bulk bytes that are still to be sent: where they lay may change now. Costs nothing when there are none, or when
  // they have been copied before.
  virtual void keep_bulk() = 0;

  virtual std::uint32_t credits() const = 0;  // bulk messages that may be put with Credit::kTake now
  // Receiver: gives credits back; needs no credit itself. Errors: Error for more than were taken.
  virtual void grant(std::uint32_t credits) = 0;

  virtual bool idle() const = 0;  // nothing queued: the kernel or the ring has taken all
  virtual void close() = 0;       // says goodbye, sends what is queued as far as the kernel takes it, ends

  // From now on beats every `interval` and is lost when nothing was heard for `silence`; logged at `warn_after`.
  virtual void start_heartbeat(Duration interval, Duration warn_after, Duration silence) = 0;
  virtual TimePoint last_heard() const = 0;

  // The connection that moves the bytes; another object than this one on the connecting side of shm and tcp.
  virtual Connection& in_front_of() { return *this; }
};

// Decides about a newcomer; called on the listener's loop.
struct Admission {
  bool accepted = false;
  std::string reason;  // when not accepted: goes to the peer and its user
  Welcome welcome;
  std::uint64_t largest_body_bytes = 64 * 1024;
  Receiver* receiver = nullptr;  // outlives the connection
  Loop* loop = nullptr;          // where the connection will live; nullptr: the listener's own
};
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual Admission admit(const Hello& hello, Medium medium) = 0;
  // Hands the connection over, on the thread of its loop, before any message of it is delivered.
  virtual void on_connection(std::unique_ptr<Connection> connection) = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;  // stops accepting; connections live on
  virtual std::string address() const = 0;
};

struct ConnectOptions {
  std::string peer = "peer";                        // what the caller calls it, for messages: "server 0"
  Duration deadline = std::chrono::seconds(10);     // for connecting and the handshake together
  std::uint64_t largest_window_bytes = 1ull << 40;  // a Welcome that asks for more is refused
  std::uint64_t largest_body_bytes = 64 * 1024;
  // The bulk bytes that are put stay unchanged until the peer has dealt with them or will not use them, also when the
  // connection ends before that, or they are unmapped (munmap(2)); keep_bulk() is an error. Then TCP need not copy them.
  bool lasting_bulk = false;
};
struct ListenOptions {
  Duration handshake_deadline = std::chrono::seconds(3);
  int pending_handshakes = 64;
};

}  // namespace downpour::transport
