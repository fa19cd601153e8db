#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/transport/ring.h"
#include "csrc/transport/shm.h"

// The two ends of a connection over shared memory as the handshake leaves them, and a receiver that writes down what it hears.
namespace downpour::transport {

constexpr auto kLongest = std::chrono::seconds(120);  // of any wait: reached only where something is broken

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const Bytes bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

struct Log : Receiver {
  void on_message(Connection& connection, const Message& message) override {
    ++messages;
    if (keeps_texts) {
      texts.push_back(text_of(message.body));
    }
    if (act) {
      act(connection, message);
    }
  }
  void on_credit(Connection& connection) override {
    ++credit_calls;
    if (on_credit_act) {
      on_credit_act(connection);
    }
  }
  void on_closed(Connection& connection, std::exception_ptr error) override {
    ++closed;
    why = describe(error);
    if (on_closed_act) {
      on_closed_act(connection);
    }
  }

  static std::string describe(const std::exception_ptr& error) {
    try {
      if (error) {
        std::rethrow_exception(error);
      }
      return "goodbye";
    } catch (const PeerLostError& lost) {
      return std::string("PeerLostError: ") + lost.what();
    } catch (const ProtocolError& protocol) {
      return std::string("ProtocolError: ") + protocol.what();
    } catch (const std::exception& other) {
      return std::string("another: ") + other.what();
    }
  }

  bool keeps_texts = true;
  std::uint64_t messages = 0;
  std::vector<std::string> texts;
  int credit_calls = 0;
  int closed = 0;
  std::string why;
  std::function<void(Connection&, const Message&)> act;
  std::function<void(Connection&)> on_credit_act;
  std::function<void(Connection&)> on_closed_act;
};

enum class Mapping { kTwo, kShared };  // kShared: one mapping for both, so that TSan sees both ends of every access

struct Ends {
  explicit Ends(const Segment::Sizes& sizes = {.ring_bytes = 4096,
                                               .to_acceptor_window_bytes = 65'536,
                                               .to_connector_window_bytes = 4096},
                Mapping mapping = Mapping::kTwo, std::uint32_t credits = 2) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    const Fd bells[2] = {Fd(eventfd(0, EFD_CLOEXEC)), Fd(eventfd(0, EFD_CLOEXEC))};
    acceptor.segment = Segment::create(sizes);
    acceptor.socket = Fd(sockets[0]);
    acceptor.sleeps_on = duplicate(bells[0].get());
    acceptor.rings = duplicate(bells[1].get());
    connector.side = Side::kConnector;
    connector.segment =
        mapping == Mapping::kShared ? acceptor.segment : Segment::map(duplicate(acceptor.segment->fd()), sizes);
    connector.socket = Fd(sockets[1]);
    connector.sleeps_on = duplicate(bells[1].get());
    connector.rings = duplicate(bells[0].get());
    welcome.to_acceptor_window_bytes = sizes.to_acceptor_window_bytes;
    welcome.to_connector_window_bytes = sizes.to_connector_window_bytes;
    welcome.credits = credits;
    hello.rank = 1;
  }

  static Fd duplicate(int fd) { return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

  std::unique_ptr<Connection> accept(Loop& loop, Receiver& receiver, std::uint64_t largest_body_bytes = 64 * 1024) {
    return make_shm_connection(loop, std::move(acceptor), hello, welcome, receiver, "worker 1 (shm)",
                               largest_body_bytes);
  }
  std::unique_ptr<Connection> connect(Loop& loop, Receiver& receiver, std::uint64_t largest_body_bytes = 64 * 1024) {
    return make_shm_connection(loop, std::move(connector), hello, welcome, receiver, "server 0 (shm)",
                               largest_body_bytes);
  }

  ShmEnd acceptor;
  ShmEnd connector;
  Hello hello;
  Welcome welcome;
};

// Both ends in one thread on one loop, turned until nothing is left to do.
struct Pair : Ends {
  using Ends::Ends;
  Pair() : Ends() {}
  void open(std::uint64_t largest_body_bytes = 64 * 1024) {
    server = accept(loop, at_server, largest_body_bytes);
    worker = connect(loop, at_worker, largest_body_bytes);
  }
  void settle() {
    for (int turn = 0; turn < 100'000; ++turn) {
      if (!loop.run_once(loop.now())) {
        return;
      }
    }
    ADD_FAILURE() << "the loop never comes to rest";
  }

  SteadyClock clock;
  Loop loop{clock};
  Log at_server;
  Log at_worker;
  std::unique_ptr<Connection> server;
  std::unique_ptr<Connection> worker;
};

// The connecting end by hand, to play a peer that dies half-way or lies.
struct RawWorker {
  explicit RawWorker(Ends& ends)
      : end(std::move(ends.connector)),
        producer(end.segment->control_to_acceptor(), end.segment->ring_to_acceptor()),
        consumer(end.segment->control_to_connector(), end.segment->ring_to_connector(),
                 {.window_bytes = end.segment->sizes().to_connector_window_bytes}) {}

  bool push(FrameHeader header, std::string_view body = {}) {
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    const bool done = producer.push(header, as_bytes(body));
    if (producer.consumer_sleeps()) {
      ring();
    }
    return done;
  }
  bool say(std::string_view body) { return push({.type = 100}, body); }
  void ring() const { EXPECT_EQ(eventfd_write(end.rings.get(), 1), 0); }
  void die() { end.socket.reset(); }
  std::uint64_t& word(std::size_t at) const {
    return *reinterpret_cast<std::uint64_t*>(end.segment->control_to_acceptor().data() + at);
  }

  ShmEnd end;
  RingProducer producer;
  RingConsumer consumer;
};

}  // namespace downpour::transport
