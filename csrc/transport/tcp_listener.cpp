#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/base/random.h"
#include "csrc/base/system_call.h"
#include "csrc/transport/admission.h"
#include "csrc/transport/lingering.h"
#include "csrc/transport/local_socket.h"
#include "csrc/transport/shm.h"
#include "csrc/transport/tcp.h"
#include "csrc/transport/tcp_connection.h"
#include "csrc/transport/tcp_socket.h"

namespace downpour::transport {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(100);  // after a failed accept: out of descriptors, mostly
constexpr Duration kLogWindow = std::chrono::seconds(10);
constexpr int kLogLinesPerWindow = 10;  // a port scanner must not fill the disk

// A newcomer whose handshake is going on. Its TCP socket leads; for shared memory it comes to the local socket too, and there
// is another newcomer until it has shown which one it is.
struct Newcomer {
  enum class Stage { kHello, kOffered, kClaiming };

  Stage stage = Stage::kHello;
  std::string from;
  Fd socket;
  HandshakeReader reader;
  Hello hello;
  Offer offer;
  Loop::TimerId deadline = 0;
};

// A connection that only its loop may make.
struct Arrival {
  Loop* loop = nullptr;
  std::function<std::unique_ptr<Connection>(Loop&)> make;
};

class TcpListener final : public Listener {
 public:
  TcpListener(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory, const ListenOptions& options);
  ~TcpListener() override;
  std::string address() const override { return local_address(socket_.get()).text(); }

 private:
  using Newcomers = std::list<Newcomer>;
  using Who = Newcomers::iterator;

  bool has_room(const Fd& listening) const;
  void accept_all(const Fd& listening);
  void receive_newcomer(const Fd& listening, Fd socket, std::string from);
  void pause();
  void update_watches();

  // The steps of a handshake. Errors: CommError while `who` is still there.
  void on_newcomer(Who who);
  std::optional<Arrival> advance(Who who);
  std::optional<Arrival> on_hello(Who who, const HandshakeFrame& frame);
  std::optional<Arrival> on_claim(Who who);
  void make_offer(Who who);
  std::optional<Arrival> admit(Who who, Medium medium);
  std::optional<Arrival> refuse(Who who, Medium medium, const std::string& reason);
  std::optional<Arrival> open_tcp(Who who, Admission admission);
  std::optional<Arrival> open_shm(Who who, const Admission& admission);
  void hand_over(const Arrival& arrival);
  void dismiss(Who who);
  void complain(const std::string& line);

  Loop& loop_;
  Fd socket_;
  Acceptor& acceptor_;
  SharedMemory shared_memory_;
  ListenOptions options_;
  LocalListener local_;
  Newcomers newcomers_;
  bool is_paused_ = false;
  Loop::TimerId pause_timer_ = 0;
  TimePoint log_window_{};
  int log_lines_ = 0;
};

TcpListener::TcpListener(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory,
                         const ListenOptions& options)
    : loop_(loop), socket_(std::move(socket)), acceptor_(acceptor), shared_memory_(shared_memory), options_(options) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  if (shared_memory_ != SharedMemory::kNever) {
    local_ = listen_local();
    loop_.watch(local_.socket.get(), EPOLLIN, [this](std::uint32_t) { accept_all(local_.socket); });
  }
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept_all(socket_); });
}

TcpListener::~TcpListener() {
  for (const Newcomer& newcomer : newcomers_) {
    loop_.cancel(newcomer.deadline);
    loop_.unwatch(newcomer.socket.get());
  }
  loop_.cancel(pause_timer_);
  loop_.unwatch(socket_.get());
  if (local_.socket) {
    loop_.unwatch(local_.socket.get());
  }
}

// Each door has its own limit: newcomers who wait for the local one must not be what keeps it shut.
bool TcpListener::has_room(const Fd& listening) const {
  const bool is_local = &listening == &local_.socket;
  const auto here = std::ranges::count_if(newcomers_, [is_local](const Newcomer& newcomer) {
    return (newcomer.stage == Newcomer::Stage::kClaiming) == is_local;
  });
  return here < options_.pending_handshakes;
}

void TcpListener::accept_all(const Fd& listening) {
  while (has_room(listening)) {
    SocketAddress from;
    from.size = sizeof(from.storage);
    Fd socket(::accept4(listening.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.size,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const bool is_drained = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
      return is_drained ? void() : pause();
    }
    receive_newcomer(listening, std::move(socket), &listening == &socket_ ? from.address().text() : "the local socket");
  }
  update_watches();
}

void TcpListener::receive_newcomer(const Fd& listening, Fd socket, std::string from) {
  const bool is_local = &listening == &local_.socket;
  if (is_local && !is_same_user(socket.get())) {
    return complain("a process of another user at the local socket was turned away");
  }
  if (!is_local) {
    tune(socket.get());
  }
  const Who who = newcomers_.emplace(newcomers_.end());
  who->stage = is_local ? Newcomer::Stage::kClaiming : Newcomer::Stage::kHello;
  who->from = std::move(from);
  who->socket = std::move(socket);
  who->deadline = loop_.call_at(loop_.now() + options_.handshake_deadline, [this, who] {
    complain(concat(who->from, " did not finish its handshake at ", address(), " within ",
                    seconds(options_.handshake_deadline), " s"));
    dismiss(who);
  });
  loop_.watch(who->socket.get(), EPOLLIN, [this, who](std::uint32_t) { on_newcomer(who); });
}

void TcpListener::pause() {
  complain(concat("accepting at ", address(), " pauses: ", system_reason(errno)));
  is_paused_ = true;
  update_watches();
  loop_.cancel(pause_timer_);
  pause_timer_ = loop_.call_at(loop_.now() + kAcceptPause, [this] {
    is_paused_ = false;
    update_watches();
  });
}

// Newcomers beyond the limit wait in the kernel's queue.
void TcpListener::update_watches() {
  for (const Fd* listening : {&socket_, &local_.socket}) {
    if (*listening) {
      loop_.change(listening->get(), !is_paused_ && has_room(*listening) ? static_cast<std::uint32_t>(EPOLLIN) : 0);
    }
  }
}

void TcpListener::on_newcomer(Who who) {
  std::optional<Arrival> arrival;
  try {
    arrival = advance(who);
  } catch (const CommError& error) {
    complain(concat(who->from, " was turned away at ", address(), ": ", error.what()));
    return dismiss(who);
  }
  if (arrival) {
    hand_over(*arrival);
  }
}

std::optional<Arrival> TcpListener::advance(Who who) {
  if (who->stage == Newcomer::Stage::kClaiming) {
    return on_claim(who);
  }
  const auto frame = who->reader.read(who->socket.get());
  return frame ? on_hello(who, *frame) : std::nullopt;
}

std::optional<Arrival> TcpListener::on_hello(Who who, const HandshakeFrame& frame) {
  const FrameType expected = who->stage == Newcomer::Stage::kOffered ? FrameType::kDecline : FrameType::kHello;
  DOWNPOUR_CHECK_AS(ProtocolError, frame.is(expected), "expected a frame of type ", static_cast<int>(expected),
                    " in the handshake, found ", frame.header.type);
  if (who->stage == Newcomer::Stage::kOffered) {
    return admit(who, Medium::kTcp);
  }
  who->hello = decode_hello(frame.body);
  if (who->hello.protocol == kProtocolVersion && who->hello.wants_shared_memory != 0 && local_.socket) {
    make_offer(who);
    return std::nullopt;
  }
  return admit(who, Medium::kTcp);
}

void TcpListener::make_offer(Who who) {
  who->offer = {{system_random(), system_random()}, local_.name};
  who->stage = Newcomer::Stage::kOffered;
  send_handshake(who->socket.get(), FrameType::kOffer, encode(who->offer));
}

std::optional<Arrival> TcpListener::on_claim(Who who) {
  const Received packet = receive_descriptors(who->socket.get(), kLargestHandshakeBytes, 0);
  const HandshakeFrame frame = decode_handshake_frame(packet.message);
  DOWNPOUR_CHECK_AS(ProtocolError, frame.is(FrameType::kClaim),
                    "expected a claim at the local socket, found a frame of type ", frame.header.type);
  const Claim claim = decode_claim(frame.body);
  const Who claimed = std::ranges::find_if(newcomers_, [&claim](const Newcomer& newcomer) {
    return newcomer.stage == Newcomer::Stage::kOffered && std::ranges::equal(newcomer.offer.nonce, claim.nonce);
  });
  DOWNPOUR_CHECK_AS(ProtocolError, claimed != newcomers_.end(), "a claim to an offer that nobody was made");
  who->hello = std::move(claimed->hello);
  who->from = std::move(claimed->from);
  dismiss(claimed);
  return admit(who, Medium::kSharedMemory);
}

std::optional<Arrival> TcpListener::admit(Who who, Medium medium) {
  if (medium == Medium::kTcp && shared_memory_ == SharedMemory::kRequire && who->hello.protocol == kProtocolVersion) {
    return refuse(who, medium,
                  "shared memory is required here, and the newcomer does not want it or cannot reach the local "
                  "socket (another machine, network namespace or user)");
  }
  Admission admission = decide(acceptor_, who->hello, medium);
  if (!admission.accepted) {
    return refuse(who, medium, admission.reason);
  }
  return medium == Medium::kTcp ? open_tcp(who, std::move(admission)) : open_shm(who, admission);
}

std::optional<Arrival> TcpListener::refuse(Who who, Medium medium, const std::string& reason) {
  complain(concat(address(), " refused ", newcomer(who->hello, medium), " from ", who->from, ": ", reason));
  send_handshake(who->socket.get(), FrameType::kRefused, encode(Refusal{reason}));
  loop_.unwatch(who->socket.get());
  linger(loop_, std::move(who->socket));
  dismiss(who);
  return std::nullopt;
}

std::optional<Arrival> TcpListener::open_tcp(Who who, Admission admission) {
  Window window = window_of(admission);
  if (!admission.accepted) {
    return refuse(who, Medium::kTcp, admission.reason);
  }
  send_handshake(who->socket.get(), FrameType::kWelcome, encode(admission.welcome));
  loop_.unwatch(who->socket.get());
  Terms terms{Side::kAcceptor,
              who->hello,
              admission.welcome,
              admission.receiver,
              newcomer(who->hello, Medium::kTcp),
              admission.largest_body_bytes};
  // Shared only because std::function copies.
  const auto socket = std::make_shared<Fd>(std::move(who->socket));
  const auto shared_window = std::make_shared<Window>(std::move(window));
  dismiss(who);
  return Arrival{admission.loop, [socket, shared_window, terms](Loop& loop) {
                   return std::make_unique<TcpConnection>(loop, std::move(*socket), std::move(*shared_window), terms);
                 }};
}

// Who sleeps on which doorbell.
struct Doorbells {
  Fd acceptor{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Fd connector{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

std::optional<Arrival> TcpListener::open_shm(Who who, const Admission& admission) {
  Segment::Sizes sizes;
  sizes.to_acceptor_window_bytes = admission.welcome.to_acceptor_window_bytes;
  sizes.to_connector_window_bytes = admission.welcome.to_connector_window_bytes;
  const auto end = std::make_shared<ShmEnd>();  // shared only because std::function copies
  Doorbells bells;
  try {
    DOWNPOUR_CHECK_AS(CommError, bells.acceptor && bells.connector, "eventfd failed: ", system_reason(errno));
    end->segment = Segment::create(sizes);
  } catch (const CommError& error) {
    return refuse(who, Medium::kSharedMemory, concat(kLaterPrefix, error.what()));
  }
  const int descriptors[] = {end->segment->fd(), bells.connector.get(), bells.acceptor.get()};
  send_descriptors(who->socket.get(), handshake_frame(FrameType::kWelcome, encode(admission.welcome)), descriptors);
  loop_.unwatch(who->socket.get());
  end->socket = std::move(who->socket);
  end->sleeps_on = std::move(bells.acceptor);
  end->rings = std::move(bells.connector);
  const Hello hello = who->hello;
  dismiss(who);
  return Arrival{admission.loop, [end, hello, admission](Loop& loop) {
                   return make_shm_connection(loop, std::move(*end), hello, admission.welcome, *admission.receiver,
                                              newcomer(hello, Medium::kSharedMemory), admission.largest_body_bytes);
                 }};
}

void TcpListener::hand_over(const Arrival& arrival) {
  Loop& target = arrival.loop != nullptr ? *arrival.loop : loop_;
  const auto arrive = [&target, &acceptor = acceptor_, make = arrival.make] {
    std::unique_ptr<Connection> connection;
    try {
      connection = make(target);
    } catch (const CommError& error) {
      return log_warning("an admitted newcomer was dropped: ", error.what());
    }
    acceptor.on_connection(std::move(connection));  // the listener may be gone afterwards
  };
  &target == &loop_ ? arrive() : target.post(arrive);
}

void TcpListener::dismiss(Who who) {
  loop_.cancel(who->deadline);
  if (who->socket) {
    loop_.unwatch(who->socket.get());
  }
  newcomers_.erase(who);
  update_watches();
}

void TcpListener::complain(const std::string& line) {
  if (loop_.now() >= log_window_ + kLogWindow) {
    log_window_ = loop_.now();
    log_lines_ = 0;
  }
  if (++log_lines_ <= kLogLinesPerWindow) {
    log_warning(line, log_lines_ == kLogLinesPerWindow ? " (more of this is not shown for some seconds)" : "");
  }
}

}  // namespace

std::unique_ptr<Listener> listen_tcp(Loop& loop, Fd socket, Acceptor& acceptor, SharedMemory shared_memory,
                                     Exposure exposure, const ListenOptions& options) {
  check_exposure(local_socket_address(socket.get()), exposure);
  return std::make_unique<TcpListener>(loop, std::move(socket), acceptor, shared_memory, options);
}

}  // namespace downpour::transport
