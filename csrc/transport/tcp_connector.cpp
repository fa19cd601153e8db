#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/random.h"
#include "csrc/base/system_call.h"
#include "csrc/transport/connector.h"
#include "csrc/transport/local_socket.h"
#include "csrc/transport/shm.h"
#include "csrc/transport/tcp.h"
#include "csrc/transport/tcp_connection.h"
#include "csrc/transport/tcp_socket.h"

namespace downpour::transport {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::milliseconds(200);

Hello with_wish(Hello hello, SharedMemory shared_memory) {
  hello.wants_shared_memory = shared_memory == SharedMemory::kNever ? 0 : 1;
  return hello;
}

// From the first attempt to connect until the medium is chosen.
class TcpConnector final : public Connector {
 public:
  TcpConnector(Loop& loop, const Endpoint& endpoint, const Hello& hello, Receiver& receiver, SharedMemory shared_memory,
               const ConnectOptions& options);
  ~TcpConnector() override { close(); }

  Medium medium() const override { return medium_kind_; }

 private:
  void attempt();
  void on_connected();
  void try_again(int error);
  void on_frame();
  void on_local_packet();
  void on_deadline();

  // What a step of the handshake has led to, if it is over.
  struct Opened {
    std::unique_ptr<Connection> medium;
    Welcome welcome;
  };
  template <typename Step>
  void take(Step step);
  std::optional<Opened> on_offer(const Offer& offer);
  std::optional<Opened> open_tcp(const HandshakeFrame& frame);
  std::optional<Opened> open_shm(Received packet);
  void drop(Fd& socket);
  void abandon() override;

  Loop& loop_;
  std::vector<SocketAddress> addresses_;
  std::vector<std::byte> encoded_hello_;
  SharedMemory shared_memory_;
  Medium medium_kind_ = Medium::kTcp;
  Fd socket_;
  Fd local_;
  HandshakeReader reader_;
  Random random_{system_random()};
  Duration pause_ = kFirstPause;
  std::size_t attempts_ = 0;
  int last_error_ = 0;
  bool connected_ = false;
  bool declines_ = false;  // the local socket was reached once and led nowhere
  TimePoint started_;
  Loop::TimerId deadline_ = 0;
  Loop::TimerId retry_ = 0;
};

TcpConnector::TcpConnector(Loop& loop, const Endpoint& endpoint, const Hello& hello, Receiver& receiver,
                           SharedMemory shared_memory, const ConnectOptions& options)
    : Connector(with_wish(hello, shared_memory), receiver, concat(options.peer, " at ", endpoint.text), options),
      loop_(loop),
      addresses_(endpoint.addresses),
      encoded_hello_(encode(this->hello())),
      shared_memory_(shared_memory),
      started_(loop.now()) {
  deadline_ = loop_.call_at(started_ + options.deadline, [this] { on_deadline(); });
  retry_ = loop_.call_at(started_, [this] { attempt(); });  // from the loop, as all that may call the receiver
}

// Every step may find the world broken: then the receiver hears it. A listener that ends while we knock may come again.
template <typename Step>
void TcpConnector::take(Step step) {
  std::optional<Opened> opened;
  try {
    opened = step();
  } catch (const PeerLostError&) {
    return try_again(ECONNRESET);
  } catch (const ProtocolError& error) {
    return fail(std::make_exception_ptr(ProtocolError(concat(peer(), ": ", error.what()))));
  } catch (const CommError& error) {
    return fail(std::make_exception_ptr(CommError(concat(peer(), ": ", error.what()))));
  }
  if (opened) {
    open(std::move(opened->medium), opened->welcome);
  }
}

void TcpConnector::attempt() {
  const SocketAddress& where = addresses_[attempts_++ % addresses_.size()];
  connected_ = false;
  reader_ = HandshakeReader();
  socket_ = Fd(::socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) {
    return try_again(errno);
  }
  tune(socket_.get());
  if (::connect(socket_.get(), where.get(), where.size) != 0 && errno != EINPROGRESS) {
    return try_again(errno);
  }
  loop_.watch(socket_.get(), EPOLLOUT, [this](std::uint32_t) { connected_ ? on_frame() : on_connected(); });
}

void TcpConnector::on_connected() {
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0 || is_connected_to_itself(socket_.get())) {
    return try_again(error != 0 ? error : ECONNREFUSED);
  }
  connected_ = true;
  take([this]() -> std::optional<Opened> {
    send_handshake(socket_.get(), FrameType::kHello, encoded_hello_);
    loop_.change(socket_.get(), EPOLLIN);
    return std::nullopt;
  });
}

// Nobody listens, yet: a server may be starting again. Jittered, so that many workers do not knock in step.
void TcpConnector::try_again(int error) {
  last_error_ = error;
  connected_ = false;
  drop(socket_);
  drop(local_);
  const auto jitter = Duration(static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(pause_.count()))));
  retry_ = loop_.call_at(loop_.now() + pause_ / 2 + jitter, [this] { attempt(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

void TcpConnector::on_frame() {
  take([this]() -> std::optional<Opened> {
    const auto frame = reader_.read(socket_.get());
    if (!frame) {
      return std::nullopt;
    }
    return frame->is(FrameType::kOffer) ? on_offer(decode_offer(frame->body)) : open_tcp(*frame);
  });
}

std::optional<TcpConnector::Opened> TcpConnector::on_offer(const Offer& offer) {
  local_ = declines_ ? Fd() : connect_local(offer.socket_name);
  if (local_ && is_same_user(local_.get())) {
    declines_ = shared_memory_ != SharedMemory::kRequire;
    loop_.unwatch(socket_.get());  // stays open, since its end would take the offer back, but has nothing more to say
    loop_.watch(local_.get(), EPOLLIN, [this](std::uint32_t) { on_local_packet(); });
    send_handshake(local_.get(), FrameType::kClaim, encode(Claim{{offer.nonce[0], offer.nonce[1]}}));
    return std::nullopt;
  }
  local_.reset();
  DOWNPOUR_CHECK_AS(
      CommError, shared_memory_ != SharedMemory::kRequire,
      "shared memory is required, but its local socket cannot be reached from here (another machine, network "
      "namespace or user)");
  send_handshake(socket_.get(), FrameType::kDecline, {});
  return std::nullopt;
}

void TcpConnector::on_local_packet() {
  take([this] { return open_shm(receive_descriptors(local_.get(), kLargestHandshakeBytes, 3)); });
}

std::optional<TcpConnector::Opened> TcpConnector::open_tcp(const HandshakeFrame& frame) {
  Welcome welcome = welcome_of(frame.header, frame.body);
  DOWNPOUR_CHECK_AS(CommError, shared_memory_ != SharedMemory::kRequire,
                    "shared memory is required, but the listener does not offer it");
  Terms terms{Side::kConnector, hello(), welcome, &front(), peer() + " (tcp)", options().largest_body_bytes};
  terms.lasting_bulk = options().lasting_bulk;
  Window window(terms.incoming_window_bytes());
  loop_.unwatch(socket_.get());
  auto medium = std::make_unique<TcpConnection>(loop_, std::move(socket_), std::move(window), std::move(terms));
  return Opened{std::move(medium), std::move(welcome)};
}

std::optional<TcpConnector::Opened> TcpConnector::open_shm(Received packet) {
  const HandshakeFrame frame = decode_handshake_frame(packet.message);
  Welcome welcome = welcome_of(frame.header, frame.body);
  DOWNPOUR_CHECK_AS(ProtocolError, packet.descriptors.size() == 3, "expected 3 descriptors with the welcome, found ",
                    packet.descriptors.size());
  Segment::Sizes sizes;
  sizes.to_acceptor_window_bytes = welcome.to_acceptor_window_bytes;
  sizes.to_connector_window_bytes = welcome.to_connector_window_bytes;
  auto segment = Segment::map(std::move(packet.descriptors[0]), sizes);
  loop_.unwatch(local_.get());
  ShmEnd end{Side::kConnector, std::move(local_), std::move(segment), std::move(packet.descriptors[1]),
             std::move(packet.descriptors[2])};
  medium_kind_ = Medium::kSharedMemory;
  auto medium = make_shm_connection(loop_, std::move(end), hello(), welcome, front(), peer() + " (shm)",
                                    options().largest_body_bytes);
  return Opened{std::move(medium), std::move(welcome)};
}

void TcpConnector::on_deadline() {
  const std::string state = connected_ ? "connected, but the handshake was not answered"
                            : last_error_ == 0
                                ? "no answer at all"
                                : concat("the last one of ", attempts_, " attempts: ", system_reason(last_error_));
  fail(std::make_exception_ptr(
      TimeoutError(concat("connecting to ", peer(), " as ", name(hello().role), " ", hello().rank, " took more than ",
                          seconds(loop_.now() - started_), " s: ", state))));
}

void TcpConnector::drop(Fd& socket) {
  if (socket) {
    loop_.unwatch(socket.get());
    socket.reset();
  }
}

void TcpConnector::abandon() {
  loop_.cancel(deadline_);
  loop_.cancel(retry_);
  drop(socket_);
  drop(local_);
}

}  // namespace

std::unique_ptr<Connection> connect_tcp(Loop& loop, const Endpoint& endpoint, const Hello& hello, Receiver& receiver,
                                        SharedMemory shared_memory, const ConnectOptions& options) {
  DOWNPOUR_CHECK(!endpoint.addresses.empty(), "connecting to '", endpoint.text, "', which was not looked up");
  return std::make_unique<TcpConnector>(loop, endpoint, hello, receiver, shared_memory, options);
}

std::unique_ptr<Connection> connect_tcp(Loop& loop, const Address& address, const Hello& hello, Receiver& receiver,
                                        SharedMemory shared_memory, Exposure exposure, const ConnectOptions& options) {
  return connect_tcp(loop, look_up(address, exposure), hello, receiver, shared_memory, options);
}

}  // namespace downpour::transport
